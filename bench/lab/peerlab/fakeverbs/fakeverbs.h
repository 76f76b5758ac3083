/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * fakeverbs - an LD_PRELOAD stand-in for the part of libibverbs that a UD-only
 * daemon such as ibacm uses. One device with one port is presented; its
 * attributes come from the (possibly faked) sysfs tree of libumad2sim.so or
 * from FAKEVERBS_* environment variables. UD datagrams, unicast and multicast,
 * travel between processes as unix datagrams in one shared directory. See
 * README.md for the datagram layout. Only public headers of libibverbs-dev are
 * used.
 */
#ifndef FAKEVERBS_H
#define FAKEVERBS_H

#include <infiniband/verbs.h>

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* verbs.h hides these behind macros; we want to define the real symbols. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_query_gid_ex

#define EXPORT __attribute__((visibility("default")))

/* ------------------------------------------------------------------ wire */

#define WIRE_MAGIC 0x46565544u /* "FVUD" */
#define WIRE_VERSION 1
#define WIRE_DATA 0
#define WIRE_EVENT 1
#define WIRE_FAULT 2 /* dst_qpn: 0 the queue pair fails now, 1 its next send does */
#define WIRE_F_GRH 0x01
#define WIRE_F_MCAST 0x02
#define GRH_BYTES 40
#define MAX_PAYLOAD 4096
#define RX_BATCH 16 /* datagrams that a queue pair's thread takes at a time */
#define MCAST_QPN 0xffffffu

struct wire_hdr {          /* all multi-byte fields big endian */
	uint32_t magic;    /*  0 */
	uint8_t version;   /*  4 */
	uint8_t flags;     /*  5 */
	uint8_t sl;        /*  6 */
	uint8_t kind;      /*  7: 0 datagram, 1 async event, 2 fault */
	uint16_t slid;     /*  8 */
	uint16_t dlid;     /* 10 */
	uint32_t src_qpn;  /* 12 */
	uint32_t dst_qpn;  /* 16 */
	uint32_t qkey;     /* 20 */
	uint16_t pkey;     /* 24 */
	uint16_t length;   /* 26: payload bytes */
	uint32_t arg;      /* 28: event: new port state, else 0 */
	uint8_t grh[GRH_BYTES]; /* 32 */
};                         /* 72 */

_Static_assert(sizeof(struct wire_hdr) == 72, "wire header is 72 bytes");

/* ------------------------------------------------ facts.c: the port's facts */

#define MAX_PKEYS 128

struct portinfo {
	char dev[32];
	uint64_t node_guid; /* host order */
	union ibv_gid gid;
	uint16_t lid, sm_lid;
	uint8_t lmc, sm_sl, port_num, state;
	uint8_t width, speed, mtu, subnet_timeout;
	int pkey_cnt;
	uint16_t pkeys[MAX_PKEYS];
};

extern struct portinfo port;
extern int port_ok; /* the facts are there; run load_port_once first */

void load_port_once(void);
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
long env_num(const char *name, long fallback);

/* --------------------------------------------------------------- objects */

struct context {
	struct ibv_context pub; /* keep first */
	int event_wr;
	struct context *next;
};

struct channel {
	struct ibv_comp_channel pub; /* keep first */
	int wr;
};

struct cq {
	struct ibv_cq pub; /* keep first */
	struct ibv_wc *ring;
	unsigned cap, head, count;
	int armed;
	pthread_mutex_t lock;
};

struct rq_slot {
	uint64_t wr_id;
	uint8_t *buf;
	uint32_t len;
};

struct mgroup {
	union ibv_gid gid;
	struct mgroup *next;
};

struct qp {
	struct ibv_qp pub; /* keep first */
	struct cq *scq, *rcq;
	uint32_t qkey;
	uint16_t pkey_index;
	int sock, stop_fd;
	pthread_t thread;
	char name[64];
	struct rq_slot *rq;
	unsigned rq_cap, rq_head, rq_count;
	int fail_send; /* the next send completes with an error */
	struct mgroup *groups;
	pthread_mutex_t lock;
	struct qp *next;
};

struct ah {
	struct ibv_ah pub; /* keep first */
	struct ibv_ah_attr attr;
};

extern struct context *contexts;
extern struct qp *qps;
extern pthread_mutex_t world; /* guards both lists */

/* ------------------------------------- datagram.c: completions and datagrams */

void make_path(char *out, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void group_dir(char *out, size_t cap, const union ibv_gid *g);
void *rx_loop(void *qp);
void flush_receives(struct qp *qp); /* completes what is posted as flushed; qp->lock is held */

int op_poll_cq(struct ibv_cq *pub, int n, struct ibv_wc *wc);
int op_req_notify_cq(struct ibv_cq *pub, int solicited);
int op_post_recv(struct ibv_qp *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int op_post_send(struct ibv_qp *pub, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

#endif
