// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* softib: nodes, links, the way of a packet through the fabric. */
#include <linux/module.h>
#include <linux/slab.h>
#include "softib.h"

struct sib sib;

static unsigned int hcas = 4;
module_param(hcas, uint, 0444);
MODULE_PARM_DESC(hcas, "number of HCAs (4)");
static unsigned int ports = 1;
module_param(ports, uint, 0444);
MODULE_PARM_DESC(ports, "ports of each HCA, 1 or 2 (1)");
static unsigned int switches = 1;
module_param(switches, uint, 0444);
MODULE_PARM_DESC(switches, "number of switches, in a chain; 0: HCAs in pairs, back to back (1)");

static void sib_kick(void)
{
	if (!sib.stopping)
		mod_delayed_work(sib.wq, &sib.work, 0);
}

struct sib_pkt *sib_pkt_alloc(int len)
{
	struct sib_pkt *pkt = kzalloc(struct_size(pkt, data, len), GFP_ATOMIC);

	if (pkt) {
		pkt->len = len;
		pkt->due = jiffies;
		pkt->pkey = 0xffff;
	}
	return pkt;
}

void sib_pkt_queue(struct sib_pkt *pkt)
{
	list_add_tail(&pkt->list, &sib.pkts);
	sib_kick();
}

void sib_event(struct sib_port *p, enum ib_event_type type)
{
	struct ib_event ev = { .event = type, .element.port_num = p->num };

	if (p->node->sw || !p->node->dev || !p->node->dev->registered)
		return;
	ev.device = &p->node->dev->ib;
	sib_note("event %d %s on %s/%u", type, ib_event_msg(type), p->node->name, p->num);
	ib_dispatch_event(&ev);
}

int sib_pkey_index(const struct sib_port *p, u16 pkey)
{
	int i;

	for (i = 0; i < SIB_PKEYS; i++) {
		u16 k = be16_to_cpu(p->pkeys[i]);

		if ((k & 0x7fff) && (k & 0x7fff) == (pkey & 0x7fff) && ((k | pkey) & 0x8000))
			return i;
	}
	return -1;
}

/* --- traps ------------------------------------------------------------- */

static void sib_trap_send(struct sib_port *p)
{
	u16 sm = be16_to_cpu(p->pi.sm_lid);
	struct sib_pkt *pkt;

	p->trap.left--;
	p->trap.due = jiffies + HZ;
	if (!sm || !sib_lid(p))
		return;
	pkt = sib_pkt_alloc(256);
	if (!pkt)
		return;
	memcpy(pkt->data, p->trap.mad, 256);
	pkt->src = p;
	pkt->slid = sib_lid(p);
	pkt->dlid = sm;
	sib_pkt_queue(pkt);
}

static void sib_trap(struct sib_port *p, int urgency, u16 trap, const u8 *details, int len)
{
	static u64 tid;
	struct ib_smp *smp = (void *)p->trap.mad;
	u8 *n = smp->data;

	memset(smp, 0, sizeof(*smp));
	smp->base_version = 1;
	smp->mgmt_class = IB_MGMT_CLASS_SUBN_LID_ROUTED;
	smp->class_version = 1;
	smp->method = IB_MGMT_METHOD_TRAP;
	smp->tid = cpu_to_be64(0x50f7000000000000ULL | ++tid);
	smp->attr_id = IB_SMP_ATTR_NOTICE;
	n[0] = 0x80 | urgency;
	n[3] = p->node->sw ? 2 : 1;
	n[4] = trap >> 8;
	n[5] = trap;
	memcpy(n + 6, &p->pi.lid, 2);
	memcpy(n + 10, details, len);
	p->trap.left = 5;
	sib_trap_send(p);
}

/* the port whose LID a switch's or HCA port's traps come from */
struct sib_port *sib_sm_port(struct sib_port *p)
{
	return p->node->sw ? &p->node->port[0] : p;
}

void sib_trap_144(struct sib_port *p, u16 changes)
{
	u8 d[16] = {};

	memcpy(d + 2, &p->pi.lid, 2);
	d[5] = !!changes;
	memcpy(d + 6, &p->pi.cap_mask, 4);
	d[11] = changes;
	sib_trap(p, 4, 144, d, sizeof(d));
}

static void sib_trap_128(struct sib_node *sw)
{
	sib_trap(&sw->port[0], 1, 128, (u8 *)&sw->port[0].pi.lid, 2);
}

/* --- links ------------------------------------------------------------- */

static void sib_port_link(struct sib_port *p, bool up)
{
	int old = sib_state(p);

	if (up == (old != IB_PORT_DOWN))
		goto phys;
	p->pi.linkspeed_portstate = (p->pi.linkspeed_portstate & 0xf0) | (up ? IB_PORT_INIT : IB_PORT_DOWN);
	if (!up)
		p->downed++;
	sib_note("link %s/%u %s", p->node->name, p->num, up ? "up (INIT)" : "down");
	if (!up)
		sib_event(p, IB_EVENT_PORT_ERR);
	if (p->node->sw) {
		p->node->si[11] |= 4;	/* PortStateChange */
		sib_trap_128(p->node);
	}
phys:
	p->pi.portphysstate_linkdown = (p->pi.portphysstate_linkdown & 0xf) |
		(up ? 5 : p->disabled || p->down ? 3 : 2) << 4;
}

void sib_link_update(struct sib_port *p)
{
	bool up = p->peer && !p->down && !p->disabled && !p->peer->down && !p->peer->disabled;

	if (up) {	/* a link trains at both ends before anybody is told */
		sib_port_link(p, true);
		sib_port_link(p->peer, true);
		return;
	}
	sib_port_link(p, false);
	if (p->peer)
		sib_port_link(p->peer, false);
}

void sib_link_bounce(struct sib_port *p)
{
	bool down = p->down;

	p->down = true;
	sib_link_update(p);
	p->down = down;
	sib_link_update(p);
}

static void sib_connect(struct sib_port *a, struct sib_port *b)
{
	a->peer = b;
	b->peer = a;
}

/* --- packets ----------------------------------------------------------- */

static bool sib_is_mcast(u16 lid)
{
	return lid >= 0xc000 && lid != 0xffff;
}

static bool sib_my_lid(const struct sib_port *p, u16 lid)
{
	return sib_lid(p) && (lid & ~((1 << sib_lmc(p)) - 1)) == sib_lid(p);
}

static void sib_hca_rx(struct sib_port *p, struct sib_pkt *pkt, bool local)
{
	struct sib_dev *dev = p->node->dev;
	struct sib_qp *qp = NULL, *q;
	struct sib_mcast *m;
	bool any = false;

	if (!dev) {
		sib_trace(pkt, "dropped: no device", p);
		return;
	}
	if (!local && sib_state(p) < (pkt->dqp == 0 ? IB_PORT_INIT : IB_PORT_ARMED)) {
		sib_trace(pkt, "dropped: port not ready", p);
		return;
	}
	p->rx_pkts++;
	p->rx_words += (pkt->len + 40) / 4;
	if (sib_is_mcast(pkt->dlid)) {
		list_for_each_entry(q, &dev->qps, list) {
			if (q->port != p)
				continue;
			list_for_each_entry(m, &q->mcast, list)
				if (m->lid == pkt->dlid && pkt->grh_present &&
				    !memcmp(&m->gid, &pkt->grh.dgid, 16) &&
				    !(local && q->ib.qp_num == pkt->sqp)) {
					any |= sib_qp_rx(q, p, pkt);
					break;
				}
		}
		if (!local || any)
			sib_trace(pkt, any ? "multicast delivered" : "dropped: nobody attached", p);
		return;
	}
	if (pkt->dqp < 2) {
		qp = p->special[pkt->dqp];
	} else {
		list_for_each_entry(q, &dev->qps, list)
			if (q->ib.qp_num == pkt->dqp && q->port == p)
				qp = q;
	}
	if (!qp)
		sib_trace(pkt, "dropped: no such QP", p);
	else if (sib_qp_rx(qp, p, pkt))
		sib_trace(pkt, "delivered", p);
}

static struct sib_port *sib_switch_reply(struct sib_node *sw, struct sib_port *in, struct sib_pkt *pkt)
{
	struct ib_smp *smp = (void *)pkt->data;

	if (smp->mgmt_class == IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE) {
		if (smp->hop_cnt == 0)
			return NULL;
		smp->hop_ptr--;
		pkt->slid = pkt->dlid = 0xffff;
		if (smp->return_path[smp->hop_ptr] > sw->nports)
			return NULL;
		return &sw->port[smp->return_path[smp->hop_ptr]];
	}
	pkt->dlid = pkt->slid;
	pkt->slid = sib_lid(&sw->port[0]);
	swap(pkt->dqp, pkt->sqp);
	pkt->grh_present = false;
	return NULL;
}

/* Where a switch sends a unicast packet: NULL: nowhere, port 0: to itself. */
static struct sib_port *sib_lft(struct sib_node *sw, u16 dlid)
{
	u8 out;

	if (sib_my_lid(&sw->port[0], dlid))
		return &sw->port[0];
	if (dlid >= SIB_LFT || dlid > (sw->si[6] << 8 | sw->si[7]))
		return NULL;
	out = sw->lft[dlid];
	return out && out <= sw->nports ? &sw->port[out] : NULL;
}

/* One directed-route SMP at a switch. The port to send it on by, or NULL. */
static struct sib_port *sib_switch_dr(struct sib_node *sw, struct sib_port *in, struct sib_pkt *pkt)
{
	struct ib_smp *smp = (void *)pkt->data;
	u8 out;

	if (smp->hop_cnt >= IB_SMP_MAX_PATH_HOPS)
		return NULL;
	if (!ib_get_smp_direction(smp)) {
		if (smp->hop_ptr == 0 || smp->hop_ptr > smp->hop_cnt)
			return NULL;
		smp->return_path[smp->hop_ptr] = in->num;
		smp->hop_ptr++;
		if (smp->hop_ptr <= smp->hop_cnt) {
			out = smp->initial_path[smp->hop_ptr];
			return out && out <= sw->nports ? &sw->port[out] : NULL;
		}
		if (smp->dr_dlid != IB_LID_PERMISSIVE || !sib_smp(sw, in, smp))
			return NULL;
		return sib_switch_reply(sw, in, pkt);
	}
	if (smp->hop_ptr < 2 || smp->hop_ptr > smp->hop_cnt)
		return NULL;
	smp->hop_ptr--;
	out = smp->return_path[smp->hop_ptr];
	return out && out <= sw->nports ? &sw->port[out] : NULL;
}

static struct sib_pkt *sib_pkt_copy(const struct sib_pkt *pkt)
{
	return kmemdup(pkt, sizeof(*pkt) + pkt->len, GFP_ATOMIC);
}

/* Takes over pkt, which came in at in (a switch's own: port 0). */
static void sib_switch_rx(struct sib_node *sw, struct sib_port *in, struct sib_pkt *pkt)
{
	struct sib_port *out = NULL;
	const char *why = "dropped: no route";
	int need = pkt->dqp == 0 ? IB_PORT_INIT : IB_PORT_ACTIVE;
	int i;

	if (pkt->dlid == 0xffff) {
		if (pkt->dqp == 0 && pkt->len == 256)
			out = sib_switch_dr(sw, in, pkt);
	} else if (sib_is_mcast(pkt->dlid)) {
		for (i = 1; i <= sw->nports; i++) {
			u16 idx = pkt->dlid - 0xc000;
			struct sib_pkt *c;

			if (&sw->port[i] == in || idx >= SIB_MFT ||
			    !(be16_to_cpu(sw->mft[idx][i / 16]) & 1 << (i % 16)) ||
			    sib_state(&sw->port[i]) != IB_PORT_ACTIVE)
				continue;
			c = sib_pkt_copy(pkt);
			if (!c)
				continue;
			c->at = &sw->port[i];
			list_add(&c->list, &sib.pkts);
			out = c->at;
		}
		if (!out)
			sib_trace(pkt, "dropped: no multicast route", in);
		kfree(pkt);
		return;
	} else {
		out = sib_lft(sw, pkt->dlid);
		if (out == &sw->port[0]) {	/* for the switch itself */
			const struct ib_mad_hdr *h = (void *)pkt->data;
			bool ok = false;

			out = NULL;
			if (pkt->len == 256 && pkt->dqp == 0 && h->mgmt_class == IB_MGMT_CLASS_SUBN_LID_ROUTED)
				ok = sib_smp(sw, in, (void *)pkt->data);
			else if (pkt->len == 256 && pkt->dqp == 1 && h->mgmt_class == IB_MGMT_CLASS_PERF_MGMT)
				ok = sib_perf(sw, in, pkt->data);
			if (ok) {
				sib_switch_reply(sw, in, pkt);
				out = sib_lft(sw, pkt->dlid);
			} else {
				why = "consumed by the switch";
			}
		}
	}
	if (!out || !out->num || sib_state(out) < need) {
		if (out)
			in->discards++;
		sib_trace(pkt, out ? "dropped: output port not ready" : why, in);
		kfree(pkt);
		return;
	}
	pkt->at = out;
	list_add(&pkt->list, &sib.pkts);
}

/* Takes over pkt: one step of its way. */
static void sib_step(struct sib_pkt *pkt)
{
	struct sib_port *p = pkt->src, *to;

	if (!pkt->at) {		/* enters the fabric here */
		if (!pkt->ruled && !sib_rules(pkt)) {
			sib_trace(pkt, "dropped: rule", p);
			goto free;
		}
		pkt->ruled = true;
		if (time_before(jiffies, pkt->due)) {
			list_add_tail(&pkt->list, &sib.pkts);
			return;
		}
		if (p->node->sw) {
			sib_switch_rx(p->node, p, pkt);
			return;
		}
		if (sib_is_mcast(pkt->dlid)) {
			sib_hca_rx(p, pkt, true);
		} else if (pkt->dlid != 0xffff && sib_my_lid(p, pkt->dlid)) {
			sib_hca_rx(p, pkt, true);
			goto free;
		}
		if (sib_state(p) < (pkt->dqp == 0 ? IB_PORT_INIT : IB_PORT_ACTIVE)) {
			if (pkt->dqp == 0)
				p->vl15_dropped++;
			sib_trace(pkt, "dropped: sending port not ready", p);
			goto free;
		}
		pkt->at = p;
	}
	p = pkt->at;
	to = p->peer;
	if (!to || sib_state(p) == IB_PORT_DOWN || sib_state(to) == IB_PORT_DOWN || ++pkt->hops > 64) {
		sib_trace(pkt, "dropped: link down", p);
		goto free;
	}
	p->tx_pkts++;
	p->tx_words += (pkt->len + 40) / 4;
	if (to->node->sw) {
		to->rx_pkts++;
		to->rx_words += (pkt->len + 40) / 4;
		sib_switch_rx(to->node, to, pkt);
		return;
	}
	if (!sib_is_mcast(pkt->dlid) && pkt->dlid != 0xffff && !sib_my_lid(to, pkt->dlid))
		sib_trace(pkt, "dropped: not its LID", to);
	else
		sib_hca_rx(to, pkt, false);
free:
	kfree(pkt);
}

static void sib_work(struct work_struct *w)
{
	unsigned long flags, next = 0;
	struct sib_pkt *pkt;
	bool more = false;
	int i, j;

	spin_lock_irqsave(&sib.lock, flags);
	for (;;) {
		bool found = false;

		list_for_each_entry(pkt, &sib.pkts, list)
			if (time_after_eq(jiffies, pkt->due)) {
				found = true;
				break;
			}
		if (!found)
			break;
		list_del(&pkt->list);
		sib_step(pkt);
		spin_unlock_irqrestore(&sib.lock, flags);
		cond_resched();
		spin_lock_irqsave(&sib.lock, flags);
	}
	list_for_each_entry(pkt, &sib.pkts, list) {
		if (!more || time_before(pkt->due, next))
			next = pkt->due;
		more = true;
	}
	for (i = 0; i < sib.nnodes; i++)
		for (j = sib.node[i]->sw ? 0 : 1; j <= sib.node[i]->nports; j++) {
			struct sib_port *p = &sib.node[i]->port[j];

			if (!p->trap.left)
				continue;
			if (time_after_eq(jiffies, p->trap.due))
				sib_trap_send(p);	/* queues: kicks us again */
			if (p->trap.left && (!more || time_before(p->trap.due, next))) {
				next = p->trap.due;
				more = true;
			}
		}
	if (more && !sib.stopping && !delayed_work_pending(&sib.work))
		queue_delayed_work(sib.wq, &sib.work,
				   time_after(next, jiffies) ? next - jiffies : 0);
	spin_unlock_irqrestore(&sib.lock, flags);
}

/* --- building it -------------------------------------------------------- */

static void sib_port_init(struct sib_node *n, int i)
{
	struct sib_port *p = &n->port[i];
	struct ib_port_info *pi = &p->pi;

	memset(pi, 0, sizeof(*pi));
	memset(p->pkeys, 0, sizeof(p->pkeys));
	memset(p->guids, 0, sizeof(p->guids));
	memset(&p->trap, 0, sizeof(p->trap));
	p->disabled = false;
	p->node = n;
	p->num = i;
	p->guids[0] = cpu_to_be64(be64_to_cpu(n->guid) + (n->sw ? 0 : i));
	p->pkeys[0] = cpu_to_be16(0xffff);
	pi->gid_prefix = cpu_to_be64(0xfe80000000000000ULL);
	/* trap, system image GUID, capability mask notice, client reregister */
	pi->cap_mask = n->sw ? 0 : cpu_to_be32(0x02400808);
	pi->link_width_enabled = pi->link_width_supported = 3;	/* 1x, 4x */
	pi->link_width_active = 2;
	pi->linkspeed_portstate = 7 << 4 | IB_PORT_DOWN;
	pi->portphysstate_linkdown = 2 << 4 | 2;
	pi->linkspeedactive_enabled = 4 << 4 | 7;		/* QDR */
	pi->neighbormtu_mastersmsl = IB_MTU_4096 << 4;
	pi->vlcap_inittype = 1 << 4;
	pi->inittypereply_mtucap = IB_MTU_4096;
	pi->operationalvl_pei_peo_fpi_fpo = 1 << 4;
	pi->guid_cap = n->sw && i ? 0 : SIB_GUIDS;
	pi->clientrereg_resv_subnetto = 18;
	pi->resv_resptimevalue = 16;
	if (n->sw && !i) {
		pi->cap_mask = cpu_to_be32(0x00000808);
		pi->linkspeed_portstate = 7 << 4 | IB_PORT_ACTIVE;
		pi->portphysstate_linkdown = 5 << 4 | 2;
	}
}

static struct sib_node *sib_node_new(bool sw, int idx, int nports)
{
	struct sib_node *n = kzalloc(sizeof(*n), GFP_KERNEL);
	int i;

	if (!n)
		return NULL;
	n->port = kcalloc(nports + 1, sizeof(*n->port), GFP_KERNEL);
	if (!n->port) {
		kfree(n);
		return NULL;
	}
	sib.node[sib.nnodes++] = n;
	n->sw = sw;
	n->nr = idx;
	n->nports = nports;
	snprintf(n->name, sizeof(n->name), sw ? "sw%d" : "sib%d", idx);
	n->guid = cpu_to_be64((sw ? 0x0200000000020000ULL : 0x0200000000010000ULL) + (idx << 8));
	for (i = sw ? 0 : 1; i <= nports; i++)
		sib_port_init(n, i);
	if (sw) {
		n->lft = kvmalloc(SIB_LFT, GFP_KERNEL);
		n->mft = kvcalloc(SIB_MFT, sizeof(*n->mft), GFP_KERNEL);
		if (!n->lft || !n->mft)
			return NULL;
		memset(n->lft, 0xff, SIB_LFT);
		n->si[0] = SIB_LFT >> 8;
		n->si[4] = SIB_MFT >> 8;
		n->si[15] = SIB_PKEYS;
		n->si[8] = n->si[9] = n->si[10] = 0xff;
	}
	return n;
}

static void sib_links(struct sib_node *n, bool down)
{
	unsigned long flags;
	int i;

	spin_lock_irqsave(&sib.lock, flags);
	for (i = 1; i <= n->nports; i++)
		if (n->port[i].peer) {
			n->port[i].down = down;
			sib_link_update(&n->port[i]);
		}
	spin_unlock_irqrestore(&sib.lock, flags);
}

int sib_unplug(struct sib_node *n)
{
	unsigned long flags;
	int i;

	if (n->sw || !n->dev)
		return -EINVAL;
	sib_links(n, true);
	sib_unregister(n->dev);
	spin_lock_irqsave(&sib.lock, flags);
	for (i = 1; i <= n->nports; i++)
		sib_port_init(n, i);	/* LID 0 again */
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}

int sib_plug(struct sib_node *n)
{
	struct sib_dev *dev;
	int err;

	if (n->sw || n->dev)
		return -EINVAL;
	dev = ib_alloc_device(sib_dev, ib);
	if (!dev)
		return -ENOMEM;
	dev->node = n;
	n->dev = dev;
	err = sib_register(dev, n->nr);
	if (err)
		sib_unregister(dev);
	else
		sib_links(n, false);
	return err;
}

static void sib_down(void)
{
	struct sib_pkt *pkt, *tmp;
	int i;

	for (i = 0; i < sib.nnodes; i++)
		if (sib.node[i]->dev)
			sib_unregister(sib.node[i]->dev);
	sib.stopping = true;
	cancel_delayed_work_sync(&sib.work);
	sib_ctl_exit();
	destroy_workqueue(sib.wq);
	list_for_each_entry_safe(pkt, tmp, &sib.pkts, list)
		kfree(pkt);
	for (i = 0; i < sib.nnodes; i++) {
		kvfree(sib.node[i]->lft);
		kvfree(sib.node[i]->mft);
		kfree(sib.node[i]->port);
		kfree(sib.node[i]);
	}
}

static int __init sib_init(void)
{
	struct sib_node *hca[SIB_MAX_HCAS], *sw[SIB_MAX_SWITCHES];
	unsigned int i, p, per, n;
	int err;

	hcas = clamp(hcas, 1U, (unsigned int)SIB_MAX_HCAS);
	ports = clamp(ports, 1U, (unsigned int)SIB_HCA_PORTS);
	switches = min(switches, (unsigned int)SIB_MAX_SWITCHES);
	spin_lock_init(&sib.lock);
	INIT_LIST_HEAD(&sib.pkts);
	INIT_DELAYED_WORK(&sib.work, sib_work);
	sib.wq = alloc_workqueue("softib", WQ_UNBOUND, 0);
	if (!sib.wq)
		return -ENOMEM;
	err = sib_ctl_init();
	if (err) {
		destroy_workqueue(sib.wq);
		return err;
	}
	err = -ENOMEM;
	per = switches ? DIV_ROUND_UP(hcas * ports, switches) : 0;
	if (per + 2 > SIB_PORTS) {
		err = -EINVAL;
		goto fail;
	}
	for (i = 0; i < switches; i++)
		if (!(sw[i] = sib_node_new(true, i, per + 2)))
			goto fail;
	for (i = 0; i < hcas; i++)
		if (!(hca[i] = sib_node_new(false, i, ports)))
			goto fail;
	/* HCA ports fill the switches in turn, ports 1..per; the last two join switches. */
	for (i = 0, n = 0; i < hcas; i++)
		for (p = 1; p <= ports; p++, n++) {
			if (switches)
				sib_connect(&hca[i]->port[p], &sw[n % switches]->port[n / switches + 1]);
			else if (i % 2)
				sib_connect(&hca[i]->port[p], &hca[i - 1]->port[p]);
		}
	for (i = 1; i < switches; i++)
		sib_connect(&sw[i - 1]->port[per + 2], &sw[i]->port[per + 1]);
	for (i = 0; i < hcas; i++) {
		err = sib_plug(hca[i]);
		if (err)
			goto fail;
	}
	for (i = 0; i < switches; i++)
		sib_links(sw[i], false);
	pr_info("softib: %u HCAs, %u ports each, %u switches\n", hcas, ports, switches);
	return 0;
fail:
	sib_down();
	return err;
}

static void __exit sib_exit(void)
{
	sib_down();
}

module_init(sib_init);
module_exit(sib_exit);
MODULE_DESCRIPTION("InfiniBand HCAs and switches in software, for tests");
MODULE_LICENSE("Dual BSD/GPL");
