// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* softib: the ib_device of one HCA. Kernel-owned SMI, GSI and UD queue pairs. */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <rdma/ib_cache.h>
#include "softib.h"

/* --- completions --------------------------------------------------------- */

static void sib_cq_work(struct work_struct *w)
{
	struct sib_cq *cq = container_of(w, struct sib_cq, work);

	local_bh_disable();
	if (cq->ib.comp_handler)
		cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
	local_bh_enable();
}

static void sib_push(struct ib_cq *ibcq, const struct ib_wc *wc)
{
	struct sib_cq *cq = container_of(ibcq, struct sib_cq, ib);
	struct sib_wc *w = kmalloc(sizeof(*w), GFP_ATOMIC);

	if (!w)
		return;
	w->wc = *wc;
	list_add_tail(&w->list, &cq->wcs);
	if (cq->armed) {
		cq->armed = false;
		queue_work(sib.wq, &cq->work);
	}
}

/* sib.lock held */
bool sib_qp_rx(struct sib_qp *qp, struct sib_port *p, struct sib_pkt *pkt)
{
	struct ib_wc wc = {};
	struct sib_recv *r;
	int pki = 0, off = 0, i;
	u8 grh[40] = {};

	if (qp->state != IB_QPS_RTR && qp->state != IB_QPS_RTS) {
		sib_trace(pkt, "dropped: QP not ready", p);
		return false;
	}
	if (pkt->dqp) {
		pki = sib_pkey_index(p, pkt->pkey);
		if (pki < 0) {
			sib_trace(pkt, "dropped: P_Key", p);
			return false;
		}
		if (pkt->qkey != qp->qkey) {
			sib_trace(pkt, "dropped: Q_Key", p);
			return false;
		}
	}
	r = list_first_entry_or_null(&qp->rq, struct sib_recv, list);
	if (!r) {
		sib_trace(pkt, "dropped: no receive posted", p);
		return false;
	}
	list_del(&r->list);
	if (pkt->grh_present)
		memcpy(grh, &pkt->grh, 40);
	for (i = 0; i < r->num_sge && off < pkt->len + 40; i++) {
		u8 *to = (u8 *)(uintptr_t)r->sge[i].addr;
		int left = min_t(int, r->sge[i].length, pkt->len + 40 - off);

		if (off < 40) {
			int n = min(left, 40 - off);

			memcpy(to, grh + off, n);
			to += n;
			off += n;
			left -= n;
		}
		if (left) {
			memcpy(to, pkt->data + off - 40, left);
			off += left;
		}
	}
	wc.status = off < pkt->len + 40 ? IB_WC_LOC_LEN_ERR : IB_WC_SUCCESS;
	wc.opcode = IB_WC_RECV;
	wc.wr_id = r->wr_id;
	wc.qp = &qp->ib;
	wc.byte_len = pkt->len + 40;
	wc.src_qp = pkt->sqp;
	wc.slid = pkt->slid;
	wc.sl = pkt->sl;
	wc.pkey_index = pki;
	wc.port_num = p->num;
	wc.dlid_path_bits = pkt->dlid == 0xffff || pkt->dlid >= 0xc000 ? 0 : pkt->dlid - sib_lid(p);
	wc.wc_flags = pkt->grh_present ? IB_WC_GRH : 0;
	if (pkt->imm_present) {
		wc.wc_flags |= IB_WC_WITH_IMM;
		wc.ex.imm_data = pkt->imm;
	}
	kfree(r);
	sib_push(qp->ib.recv_cq, &wc);
	return true;
}

static int sib_poll_cq(struct ib_cq *ibcq, int n, struct ib_wc *wc)
{
	struct sib_cq *cq = container_of(ibcq, struct sib_cq, ib);
	unsigned long flags;
	struct sib_wc *w;
	int i = 0;

	spin_lock_irqsave(&sib.lock, flags);
	while (i < n && (w = list_first_entry_or_null(&cq->wcs, struct sib_wc, list))) {
		list_del(&w->list);
		wc[i++] = w->wc;
		kfree(w);
	}
	spin_unlock_irqrestore(&sib.lock, flags);
	return i;
}

static int sib_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags f)
{
	struct sib_cq *cq = container_of(ibcq, struct sib_cq, ib);
	unsigned long flags;
	int ret;

	spin_lock_irqsave(&sib.lock, flags);
	cq->armed = true;
	ret = (f & IB_CQ_REPORT_MISSED_EVENTS) && !list_empty(&cq->wcs);
	spin_unlock_irqrestore(&sib.lock, flags);
	return ret;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
static int sib_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
			 struct uverbs_attr_bundle *attrs)
#else
static int sib_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
			 struct ib_udata *attrs)
#endif
{
	struct sib_cq *cq = container_of(ibcq, struct sib_cq, ib);

	if (attrs)
		return -EOPNOTSUPP;
	INIT_LIST_HEAD(&cq->wcs);
	INIT_WORK(&cq->work, sib_cq_work);
	ibcq->cqe = attr->cqe;
	return 0;
}

static int sib_destroy_cq(struct ib_cq *ibcq, struct ib_udata *u)
{
	struct ib_wc wc;

	cancel_work_sync(&container_of(ibcq, struct sib_cq, ib)->work);
	while (sib_poll_cq(ibcq, 1, &wc))
		;
	return 0;
}

/* --- queue pairs ---------------------------------------------------------- */

static void sib_flush(struct sib_qp *qp)
{
	struct sib_recv *r, *tmp;

	list_for_each_entry_safe(r, tmp, &qp->rq, list) {
		struct ib_wc wc = { .status = IB_WC_WR_FLUSH_ERR, .opcode = IB_WC_RECV,
				    .wr_id = r->wr_id, .qp = &qp->ib };

		if (qp->state == IB_QPS_ERR)
			sib_push(qp->ib.recv_cq, &wc);
		list_del(&r->list);
		kfree(r);
	}
}

static int sib_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *u)
{
	struct sib_qp *qp = container_of(ibqp, struct sib_qp, ib);
	struct sib_dev *dev = to_sdev(ibqp->device);
	u32 port = attr->qp_type == IB_QPT_UD ? 1 : attr->port_num;
	unsigned long flags;

	if (u || (attr->qp_type != IB_QPT_SMI && attr->qp_type != IB_QPT_GSI && attr->qp_type != IB_QPT_UD))
		return -EOPNOTSUPP;
	if (attr->srq || port < 1 || port > dev->node->nports)
		return -EINVAL;
	INIT_LIST_HEAD(&qp->rq);
	INIT_LIST_HEAD(&qp->mcast);
	INIT_LIST_HEAD(&qp->list);
	qp->dev = dev;
	qp->port = &dev->node->port[port];
	qp->state = IB_QPS_RESET;
	qp->sig_all = attr->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->cap = attr->cap;
	spin_lock_irqsave(&sib.lock, flags);
	if (attr->qp_type == IB_QPT_UD) {
		ibqp->qp_num = dev->next_qpn++;
	} else {
		ibqp->qp_num = attr->qp_type == IB_QPT_GSI;
		qp->port->special[ibqp->qp_num] = qp;
	}
	list_add_tail(&qp->list, &dev->qps);
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}

static int sib_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *a, int mask, struct ib_udata *u)
{
	struct sib_qp *qp = container_of(ibqp, struct sib_qp, ib);
	unsigned long flags;

	spin_lock_irqsave(&sib.lock, flags);
	if (mask & IB_QP_QKEY)
		qp->qkey = a->qkey;
	if (mask & IB_QP_PKEY_INDEX)
		qp->pkey_index = a->pkey_index % SIB_PKEYS;
	if ((mask & IB_QP_PORT) && a->port_num >= 1 && a->port_num <= qp->dev->node->nports)
		qp->port = &qp->dev->node->port[a->port_num];
	if (mask & IB_QP_STATE) {
		qp->state = a->qp_state;
		if (qp->state == IB_QPS_ERR || qp->state == IB_QPS_RESET)
			sib_flush(qp);
	}
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}

static int sib_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *a, int mask, struct ib_qp_init_attr *init)
{
	struct sib_qp *qp = container_of(ibqp, struct sib_qp, ib);

	a->qp_state = a->cur_qp_state = qp->state;
	a->qkey = qp->qkey;
	a->pkey_index = qp->pkey_index;
	a->port_num = qp->port->num;
	a->cap = init->cap = qp->cap;
	return 0;
}

static int sib_destroy_qp(struct ib_qp *ibqp, struct ib_udata *u)
{
	struct sib_qp *qp = container_of(ibqp, struct sib_qp, ib);
	struct sib_mcast *m, *tmp;
	unsigned long flags;

	spin_lock_irqsave(&sib.lock, flags);
	qp->state = IB_QPS_RESET;
	sib_flush(qp);
	list_del(&qp->list);
	if (ibqp->qp_num < 2 && qp->port->special[ibqp->qp_num] == qp)
		qp->port->special[ibqp->qp_num] = NULL;
	list_for_each_entry_safe(m, tmp, &qp->mcast, list)
		kfree(m);
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}

static int sib_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct sib_qp *qp = container_of(ibqp, struct sib_qp, ib);
	unsigned long flags;

	for (; wr; wr = wr->next) {
		struct sib_recv *r = kmalloc(sizeof(*r), GFP_ATOMIC);

		if (!r || wr->num_sge > ARRAY_SIZE(r->sge)) {
			kfree(r);
			*bad = wr;
			return r ? -EINVAL : -ENOMEM;
		}
		r->wr_id = wr->wr_id;
		r->num_sge = wr->num_sge;
		memcpy(r->sge, wr->sg_list, wr->num_sge * sizeof(r->sge[0]));
		spin_lock_irqsave(&sib.lock, flags);
		list_add_tail(&r->list, &qp->rq);
		if (qp->state == IB_QPS_ERR)
			sib_flush(qp);
		spin_unlock_irqrestore(&sib.lock, flags);
	}
	return 0;
}

static int sib_post_one(struct sib_qp *qp, const struct ib_send_wr *wr)
{
	const struct ib_ud_wr *ud = ud_wr(wr);
	const struct rdma_ah_attr *ah = &container_of(ud->ah, struct sib_ah, ib)->attr;
	struct sib_port *p = qp->port;
	struct ib_wc wc = { .status = IB_WC_SUCCESS, .opcode = IB_WC_SEND, .wr_id = wr->wr_id, .qp = &qp->ib };
	struct sib_pkt *pkt;
	unsigned int i, len = 0;

	if (wr->opcode != IB_WR_SEND && wr->opcode != IB_WR_SEND_WITH_IMM)
		return -EINVAL;
	for (i = 0; i < wr->num_sge; i++)
		len += wr->sg_list[i].length;
	if (len > SIB_MTU)
		return -EINVAL;
	pkt = sib_pkt_alloc(len);
	if (!pkt)
		return -ENOMEM;
	for (i = 0, len = 0; i < wr->num_sge; i++) {
		memcpy(pkt->data + len, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		len += wr->sg_list[i].length;
	}
	pkt->src = p;
	pkt->dlid = rdma_ah_get_dlid(ah);
	pkt->slid = pkt->dlid == 0xffff ? 0xffff :
		sib_lid(p) | (rdma_ah_get_path_bits(ah) & ((1 << sib_lmc(p)) - 1));
	pkt->sl = rdma_ah_get_sl(ah);
	pkt->sqp = qp->ib.qp_num;
	pkt->dqp = ud->remote_qpn;
	pkt->qkey = ud->remote_qkey & 0x80000000 ? qp->qkey : ud->remote_qkey;
	pkt->pkey = be16_to_cpu(p->pkeys[qp->ib.qp_num == 1 ? ud->pkey_index % SIB_PKEYS : qp->pkey_index]);
	if (wr->opcode == IB_WR_SEND_WITH_IMM) {
		pkt->imm_present = true;
		pkt->imm = wr->ex.imm_data;
	}
	if (rdma_ah_get_ah_flags(ah) & IB_AH_GRH) {
		const struct ib_global_route *g = rdma_ah_read_grh(ah);

		pkt->grh_present = true;
		pkt->grh.version_tclass_flow = cpu_to_be32(6 << 28 | g->traffic_class << 20 | (g->flow_label & 0xfffff));
		pkt->grh.paylen = cpu_to_be16(len + 24);
		pkt->grh.next_hdr = 0x1b;
		pkt->grh.hop_limit = g->hop_limit;
		pkt->grh.dgid = g->dgid;
		pkt->grh.sgid.global.subnet_prefix = p->pi.gid_prefix;
		pkt->grh.sgid.global.interface_id = p->guids[g->sgid_index % SIB_GUIDS];
	}
	if (qp->state == IB_QPS_ERR)
		wc.status = IB_WC_WR_FLUSH_ERR;
	if (qp->state == IB_QPS_RTS)
		sib_pkt_queue(pkt);
	else
		kfree(pkt);
	if (qp->sig_all || (wr->send_flags & IB_SEND_SIGNALED) || wc.status)
		sib_push(qp->ib.send_cq, &wc);
	return 0;
}

static int sib_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct sib_qp *qp = container_of(ibqp, struct sib_qp, ib);
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&sib.lock, flags);
	for (; wr && !err; wr = err ? wr : wr->next) {
		err = sib_post_one(qp, wr);
		if (err)
			*bad = wr;
	}
	spin_unlock_irqrestore(&sib.lock, flags);
	return err;
}

static int sib_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct sib_qp *qp = container_of(ibqp, struct sib_qp, ib);
	struct sib_mcast *m = kzalloc(sizeof(*m), GFP_KERNEL);
	unsigned long flags;

	if (!m)
		return -ENOMEM;
	m->gid = *gid;
	m->lid = lid;
	spin_lock_irqsave(&sib.lock, flags);
	list_add_tail(&m->list, &qp->mcast);
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}

static int sib_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct sib_qp *qp = container_of(ibqp, struct sib_qp, ib);
	struct sib_mcast *m;
	unsigned long flags;
	int err = -EINVAL;

	spin_lock_irqsave(&sib.lock, flags);
	list_for_each_entry(m, &qp->mcast, list)
		if (m->lid == lid && !memcmp(&m->gid, gid, 16)) {
			list_del(&m->list);
			kfree(m);
			err = 0;
			break;
		}
	spin_unlock_irqrestore(&sib.lock, flags);
	return err;
}

/* --- the small things ------------------------------------------------------ */

static int sib_create_ah(struct ib_ah *ah, struct rdma_ah_init_attr *a, struct ib_udata *u)
{
	container_of(ah, struct sib_ah, ib)->attr = *a->ah_attr;
	return 0;
}

static int sib_query_ah(struct ib_ah *ah, struct rdma_ah_attr *a)
{
	*a = container_of(ah, struct sib_ah, ib)->attr;
	return 0;
}

static int sib_destroy_ah(struct ib_ah *ah, u32 f) { return 0; }
static int sib_alloc_pd(struct ib_pd *pd, struct ib_udata *u) { return 0; }
static int sib_dealloc_pd(struct ib_pd *pd, struct ib_udata *u) { return 0; }
static int sib_alloc_ucontext(struct ib_ucontext *c, struct ib_udata *u) { return 0; }
static void sib_dealloc_ucontext(struct ib_ucontext *c) { }
static void sib_disassociate_ucontext(struct ib_ucontext *c) { }

static struct ib_mr *sib_get_dma_mr(struct ib_pd *pd, int acc)
{
	struct ib_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	return mr ? mr : ERR_PTR(-ENOMEM);
}

static struct ib_mr *sib_reg_user_mr(struct ib_pd *pd, u64 start, u64 len, u64 virt, int acc, struct ib_udata *u)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int sib_dereg_mr(struct ib_mr *mr, struct ib_udata *u)
{
	kfree(mr);
	return 0;
}

static int sib_query_device(struct ib_device *d, struct ib_device_attr *a, struct ib_udata *u)
{
	memset(a, 0, sizeof(*a));
	a->fw_ver = 1ULL << 32;
	a->sys_image_guid = d->node_guid;
	a->vendor_id = SIB_VENDOR;
	a->vendor_part_id = 1;
	a->hw_ver = 1;
	a->kernel_cap_flags = IBK_LOCAL_DMA_LKEY;
	a->max_mr_size = ~0ULL;
	a->page_size_cap = PAGE_SIZE;
	a->max_qp = 256;
	a->max_qp_wr = 8192;
	a->max_send_sge = a->max_recv_sge = 4;
	a->max_cq = 256;
	a->max_cqe = 65536;
	a->max_mr = a->max_pd = 256;
	a->max_ah = 65536;
	a->max_mcast_grp = 1024;
	a->max_mcast_qp_attach = 256;
	a->max_total_mcast_qp_attach = 65536;
	a->max_pkeys = SIB_PKEYS;
	return 0;
}

static int sib_query_port(struct ib_device *d, u32 port, struct ib_port_attr *a)
{
	struct sib_port *p = sib_dev_port(d, port);
	struct ib_port_info *pi = &p->pi;
	unsigned long flags;

	spin_lock_irqsave(&sib.lock, flags);
	a->state = sib_state(p);
	a->phys_state = pi->portphysstate_linkdown >> 4;
	a->max_mtu = pi->inittypereply_mtucap & 0xf;
	a->active_mtu = pi->neighbormtu_mastersmsl >> 4;
	a->gid_tbl_len = SIB_GUIDS;
	a->pkey_tbl_len = SIB_PKEYS;
	a->port_cap_flags = be32_to_cpu(pi->cap_mask);
	a->max_msg_sz = SIB_MTU;
	a->bad_pkey_cntr = be16_to_cpu(pi->pkey_violations);
	a->qkey_viol_cntr = be16_to_cpu(pi->qkey_violations);
	a->lid = sib_lid(p);
	a->lmc = sib_lmc(p);
	a->sm_lid = be16_to_cpu(pi->sm_lid);
	a->sm_sl = pi->neighbormtu_mastersmsl & 0xf;
	a->max_vl_num = pi->vlcap_inittype >> 4;
	a->subnet_timeout = pi->clientrereg_resv_subnetto & 0x1f;
	a->init_type_reply = pi->inittypereply_mtucap >> 4;
	a->active_width = pi->link_width_active;
	a->active_speed = pi->linkspeedactive_enabled >> 4;
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}

static int sib_modify_port(struct ib_device *d, u32 port, int mask, struct ib_port_modify *m)
{
	struct sib_port *p = sib_dev_port(d, port);
	unsigned long flags;
	u32 old, cap;

	spin_lock_irqsave(&sib.lock, flags);
	old = be32_to_cpu(p->pi.cap_mask);
	cap = (old | m->set_port_cap_mask) & ~m->clr_port_cap_mask;
	if (cap != old) {
		p->pi.cap_mask = cpu_to_be32(cap);
		sib_note("%s/%u capability mask %#x", p->node->name, p->num, cap);
		if (be16_to_cpu(p->pi.sm_lid))
			sib_trap_144(p, 0);
	}
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}

static int sib_modify_device(struct ib_device *d, int mask, struct ib_device_modify *m)
{
	struct sib_node *n = to_sdev(d)->node;
	unsigned long flags;
	int i;

	if (mask & ~IB_DEVICE_MODIFY_NODE_DESC)
		return -EOPNOTSUPP;
	spin_lock_irqsave(&sib.lock, flags);
	memcpy(d->node_desc, m->node_desc, IB_DEVICE_NODE_DESC_MAX);
	for (i = 1; i <= n->nports; i++)
		if (be16_to_cpu(n->port[i].pi.sm_lid))
			sib_trap_144(&n->port[i], 1);
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}

static int sib_query_gid(struct ib_device *d, u32 port, int i, union ib_gid *g)
{
	struct sib_port *p = sib_dev_port(d, port);

	if (i < 0 || i >= SIB_GUIDS)
		return -EINVAL;
	g->global.subnet_prefix = p->pi.gid_prefix;	/* of empty entries too, as mlx5 does */
	g->global.interface_id = p->guids[i];
	return 0;
}

static int sib_query_pkey(struct ib_device *d, u32 port, u16 i, u16 *pkey)
{
	if (i >= SIB_PKEYS)
		return -EINVAL;
	*pkey = be16_to_cpu(sib_dev_port(d, port)->pkeys[i]);
	return 0;
}

static enum rdma_link_layer sib_link_layer(struct ib_device *d, u32 port)
{
	return IB_LINK_LAYER_INFINIBAND;
}

static int sib_port_immutable(struct ib_device *d, u32 port, struct ib_port_immutable *im)
{
	im->gid_tbl_len = SIB_GUIDS;
	im->pkey_tbl_len = SIB_PKEYS;
	im->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	im->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static void sib_fw_str(struct ib_device *d, char *s)
{
	strscpy(s, "1.0.0", IB_FW_VERSION_NAME_MAX);
}

static int sib_process_mad(struct ib_device *d, int f, u32 port, const struct ib_wc *wc,
			   const struct ib_grh *grh, const struct ib_mad *in, struct ib_mad *out,
			   size_t *size, u16 *pkey_index)
{
	struct sib_port *p = sib_dev_port(d, port);
	unsigned long flags;
	int ret = IB_MAD_RESULT_SUCCESS;

	memcpy(out, in, sizeof(*out));
	spin_lock_irqsave(&sib.lock, flags);
	switch (in->mad_hdr.mgmt_class) {
	case IB_MGMT_CLASS_SUBN_LID_ROUTED:
	case IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE:
		if (sib_smp(p->node, p, (struct ib_smp *)out))
			ret |= IB_MAD_RESULT_REPLY;
		else if (in->mad_hdr.method == IB_MGMT_METHOD_TRAP_REPRESS)
			ret |= IB_MAD_RESULT_CONSUMED;
		break;
	case IB_MGMT_CLASS_PERF_MGMT:
		if (sib_perf(p->node, p, (u8 *)out))
			ret |= IB_MAD_RESULT_REPLY;
		break;
	}
	spin_unlock_irqrestore(&sib.lock, flags);
	return ret;
}

static const struct ib_device_ops sib_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = 1,

	.alloc_pd = sib_alloc_pd,
	.alloc_ucontext = sib_alloc_ucontext,
	.attach_mcast = sib_attach_mcast,
	.create_ah = sib_create_ah,
	.create_cq = sib_create_cq,
	.create_qp = sib_create_qp,
	.dealloc_pd = sib_dealloc_pd,
	.dealloc_ucontext = sib_dealloc_ucontext,
	.dereg_mr = sib_dereg_mr,
	.destroy_ah = sib_destroy_ah,
	.destroy_cq = sib_destroy_cq,
	.destroy_qp = sib_destroy_qp,
	.detach_mcast = sib_detach_mcast,
	.disassociate_ucontext = sib_disassociate_ucontext,
	.get_dev_fw_str = sib_fw_str,
	.get_dma_mr = sib_get_dma_mr,
	.get_link_layer = sib_link_layer,
	.get_port_immutable = sib_port_immutable,
	.modify_device = sib_modify_device,
	.modify_port = sib_modify_port,
	.modify_qp = sib_modify_qp,
	.poll_cq = sib_poll_cq,
	.post_recv = sib_post_recv,
	.post_send = sib_post_send,
	.process_mad = sib_process_mad,
	.query_ah = sib_query_ah,
	.query_device = sib_query_device,
	.query_gid = sib_query_gid,
	.query_pkey = sib_query_pkey,
	.query_port = sib_query_port,
	.query_qp = sib_query_qp,
	.reg_user_mr = sib_reg_user_mr,
	.req_notify_cq = sib_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, sib_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, sib_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, sib_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, sib_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, sib_ucontext, ib),
};

int sib_register(struct sib_dev *dev, int nr)
{
	struct sib_node *n = dev->node;
	int err;

	INIT_LIST_HEAD(&dev->qps);
	dev->next_qpn = 0x48 + 0x100 * nr;
	dev->pdev = platform_device_register_simple("softib", nr, NULL, 0);
	if (IS_ERR(dev->pdev)) {
		err = PTR_ERR(dev->pdev);
		dev->pdev = NULL;
		return err;
	}
	dev->ib.dev.parent = &dev->pdev->dev;
	dev->ib.node_type = RDMA_NODE_IB_CA;
	dev->ib.node_guid = n->guid;
	dev->ib.phys_port_cnt = n->nports;
	dev->ib.num_comp_vectors = 1;
	dev->ib.local_dma_lkey = 1;
	snprintf(dev->ib.node_desc, sizeof(dev->ib.node_desc), "softib %s", n->name);
	ib_set_device_ops(&dev->ib, &sib_ops);
	err = ib_register_device(&dev->ib, "sib%d", NULL);
	if (!err)
		dev->registered = true;
	return err;
}

void sib_unregister(struct sib_dev *dev)
{
	bool reg = dev->registered;
	unsigned long flags;

	dev->registered = false;
	if (reg)
		ib_unregister_device(&dev->ib);
	spin_lock_irqsave(&sib.lock, flags);
	dev->node->dev = NULL;
	spin_unlock_irqrestore(&sib.lock, flags);
	if (dev->pdev)
		platform_device_unregister(dev->pdev);
	ib_dealloc_device(&dev->ib);
}
