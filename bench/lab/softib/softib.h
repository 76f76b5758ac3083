/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * softib: InfiniBand HCAs and switches in software, with IB link layer, for
 * tests of management code. See README.md.
 *
 * One spinlock (sib.lock) guards everything: topology, SMA state, queue pairs,
 * completion queues, the packets under way.
 */
#ifndef SOFTIB_H
#define SOFTIB_H

#include <linux/list.h>
#include <linux/platform_device.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_sa.h>
#include <rdma/ib_smi.h>
#include <rdma/ib_verbs.h>

#define SIB_MAX_HCAS	32
#define SIB_MAX_SWITCHES 8
#define SIB_MAX_NODES	(SIB_MAX_HCAS + SIB_MAX_SWITCHES)
#define SIB_HCA_PORTS	2
#define SIB_PORTS	63		/* of a switch, besides port 0 */
#define SIB_PKEYS	32
#define SIB_GUIDS	8
#define SIB_MTU		4096
#define SIB_LFT		49152
#define SIB_MFT		1024
#define SIB_MFT_POS	((SIB_PORTS + 16) / 16)
#define SIB_VENDOR	0x00beef	/* no real OUI */

struct sib_node;
struct sib_dev;

struct sib_trap {
	int left;			/* sends still to make; 0: none pending */
	unsigned long due;
	u8 mad[256];
};

struct sib_port {
	struct sib_node *node;
	u8 num;
	struct sib_port *peer;
	bool down;			/* by ctl */
	bool disabled;			/* by PortInfo, physical state 3 */
	bool cap_sm;
	struct ib_port_info pi;
	__be16 pkeys[SIB_PKEYS];
	__be64 guids[SIB_GUIDS];
	u8 sl2vl[8];
	u8 vlarb[4][64];
	struct sib_trap trap;
	u64 tx_pkts, tx_words, rx_pkts, rx_words;
	u32 downed, discards, vl15_dropped;
	struct sib_qp *special[2];
};

struct sib_node {
	bool sw;
	int nr;
	int nports;
	char name[16];
	__be64 guid;
	struct sib_dev *dev;		/* HCA */
	struct sib_port *port;		/* [0..nports]; [0]: switches only */
	/* switch */
	u8 si[64];
	u8 *lft;
	__be16 (*mft)[SIB_MFT_POS];
};

struct sib_dev {
	struct ib_device ib;
	struct sib_node *node;
	struct platform_device *pdev;
	struct list_head qps;
	u32 next_qpn;
	bool registered;
};

struct sib_pkt {
	struct list_head list;
	unsigned long due;
	struct sib_port *src;		/* where it entered the fabric */
	struct sib_port *at;		/* leaves by this port; NULL: stays in src's node */
	int hops;
	u16 slid, dlid, pkey;
	u8 sl;
	bool grh_present, imm_present, ruled;
	struct ib_grh grh;
	u32 sqp, dqp, qkey;
	__be32 imm;
	int len;
	u8 data[];
};

struct sib_wc {
	struct list_head list;
	struct ib_wc wc;
};

struct sib_cq {
	struct ib_cq ib;
	struct list_head wcs;
	bool armed;
	struct work_struct work;
};

struct sib_recv {
	struct list_head list;
	u64 wr_id;
	int num_sge;
	struct ib_sge sge[4];
};

struct sib_mcast {
	struct list_head list;
	union ib_gid gid;
	u16 lid;
};

struct sib_qp {
	struct ib_qp ib;
	struct list_head list, rq, mcast;
	struct sib_dev *dev;
	struct sib_port *port;
	enum ib_qp_state state;
	u32 qkey;
	u16 pkey_index;
	bool sig_all;
	struct ib_qp_cap cap;
};

struct sib_ah {
	struct ib_ah ib;
	struct rdma_ah_attr attr;
};

struct sib_pd { struct ib_pd ib; };
struct sib_ucontext { struct ib_ucontext ib; };

struct sib {
	spinlock_t lock;
	struct sib_node *node[SIB_MAX_NODES];
	int nnodes;
	struct list_head pkts;
	struct workqueue_struct *wq;
	struct delayed_work work;
	bool stopping;
};
extern struct sib sib;

static inline struct sib_dev *to_sdev(struct ib_device *d)
{
	return container_of(d, struct sib_dev, ib);
}

static inline struct sib_port *sib_dev_port(struct ib_device *d, u32 port)
{
	return &to_sdev(d)->node->port[port];
}

static inline int sib_state(const struct sib_port *p)
{
	return p->pi.linkspeed_portstate & 0xf;
}

static inline u16 sib_lid(const struct sib_port *p) { return be16_to_cpu(p->pi.lid); }
static inline int sib_lmc(const struct sib_port *p) { return p->pi.mkeyprot_resv_lmc & 7; }

/* main.c: the fabric; sib.lock held */
struct sib_pkt *sib_pkt_alloc(int len);
void sib_pkt_queue(struct sib_pkt *pkt);
void sib_link_update(struct sib_port *p);
void sib_link_bounce(struct sib_port *p);
void sib_event(struct sib_port *p, enum ib_event_type ev);
void sib_trap_144(struct sib_port *p, u16 changes);	/* changes: 1 node description */
struct sib_port *sib_sm_port(struct sib_port *p);
int sib_plug(struct sib_node *n);	/* these two: lock not held */
int sib_unplug(struct sib_node *n);
int sib_pkey_index(const struct sib_port *p, u16 pkey);

/* sma.c; sib.lock held */
bool sib_smp(struct sib_node *n, struct sib_port *in, struct ib_smp *smp);
bool sib_perf(struct sib_node *n, struct sib_port *in, u8 *mad);
void sib_set_lid(struct sib_port *p, u16 lid, int lmc);
void sib_set_state(struct sib_port *p, int state);

/* verbs.c */
int sib_register(struct sib_dev *dev, int nr);
void sib_unregister(struct sib_dev *dev);
bool sib_qp_rx(struct sib_qp *qp, struct sib_port *p, struct sib_pkt *pkt);

/* ctl.c */
int sib_ctl_init(void);
void sib_ctl_exit(void);
/* rules: what to do with a packet that enters the fabric */
bool sib_rules(struct sib_pkt *pkt);		/* false: drop it */
void sib_trace(struct sib_pkt *pkt, const char *verdict, struct sib_port *p);
void sib_note(const char *fmt, ...) __printf(1, 2);
#endif
