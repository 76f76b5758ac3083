/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What cgo cannot say of libibverbs, or would say at the cost of one crossing per
 * message: work requests in batches, and structures with unions and bit fields.
 * Slots are named by their index in the ring's region, so that no pointer of Go's
 * crosses. A work request's id is the generation of its queue pair above the place
 * that the slot has there.
 */
#ifndef ACMD_VERBS_SHIM_H
#define ACMD_VERBS_SHIM_H

#include <infiniband/verbs.h>

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define ACM_SLOT 320      /* bytes of a slot of the ring */
#define ACM_MAD_AT 64     /* where its MAD begins */
#define ACM_MAD 256
#define ACM_GRH 40        /* bytes that a UD receive buffer has before the data */
#define ACM_BATCH 32
#define ACM_QKEY 0x80010000u

struct acm_region {
	uint64_t base;
	uint32_t lkey;
};

struct acm_place {
	uint32_t place, index;
};

static inline uint64_t acm_id(uint32_t gen, uint32_t place)
{
	return (uint64_t)gen << 32 | place;
}

/* Posts up to ACM_BATCH receive buffers; returns how many were taken. */
static inline int acm_post_recv(struct ibv_qp *qp, const struct acm_region *r, uint32_t gen,
				const struct acm_place *at, int n)
{
	struct ibv_recv_wr wr[ACM_BATCH], *bad = NULL;
	struct ibv_sge sge[ACM_BATCH];
	int i;

	for (i = 0; i < n; i++) {
		sge[i].addr = r->base + (uint64_t)at[i].index * ACM_SLOT + ACM_MAD_AT - ACM_GRH;
		sge[i].length = ACM_GRH + ACM_MAD;
		sge[i].lkey = r->lkey;
		wr[i].wr_id = acm_id(gen, at[i].place);
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = 1;
	}
	if (ibv_post_recv(qp, wr, &bad) == 0)
		return n;
	return bad ? (int)(bad - wr) : 0;
}

/* Sends the MAD of one slot; returns 0 or an errno. */
static inline int acm_post_send(struct ibv_qp *qp, const struct acm_region *r, uint32_t gen,
				struct acm_place at, struct ibv_ah *ah, uint32_t qpn)
{
	struct ibv_sge sge = {
		.addr = r->base + (uint64_t)at.index * ACM_SLOT + ACM_MAD_AT,
		.length = ACM_MAD,
		.lkey = r->lkey,
	};
	struct ibv_send_wr wr = {
		.wr_id = acm_id(gen, at.place),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = ACM_QKEY;
	return ibv_post_send(qp, &wr, &bad);
}

static inline struct ibv_mr *acm_register(struct ibv_pd *pd, uint64_t base, size_t len)
{
	return ibv_reg_mr(pd, (void *)(uintptr_t)base, len, IBV_ACCESS_LOCAL_WRITE);
}

static inline struct ibv_qp *acm_create_qp(struct ibv_pd *pd, struct ibv_cq *scq, struct ibv_cq *rcq,
					   uint32_t sends, uint32_t receives)
{
	struct ibv_qp_init_attr a = {
		.send_cq = scq,
		.recv_cq = rcq,
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 0,
		.cap = {
			.max_send_wr = sends,
			.max_recv_wr = receives,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};

	return ibv_create_qp(pd, &a);
}

static inline int acm_to_reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };

	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

/* From reset; receive buffers may be posted then. */
static inline int acm_to_init(struct ibv_qp *qp, uint8_t port, uint16_t pkey_index)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = port,
		.pkey_index = pkey_index,
		.qkey = ACM_QKEY,
	};

	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
}

/* From init to where it sends and receives. */
static inline int acm_to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };
	int err = ibv_modify_qp(qp, &a, IBV_QP_STATE);

	if (err)
		return err;
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = 0;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

struct acm_address {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint16_t dlid;
	uint8_t sl, path_bits, port, static_rate, gid_index, hop_limit, traffic_class, global;
};

static inline struct ibv_ah *acm_create_ah(struct ibv_pd *pd, const struct acm_address *to)
{
	struct ibv_ah_attr a = {
		.dlid = to->dlid,
		.sl = to->sl,
		.src_path_bits = to->path_bits,
		.port_num = to->port,
		.static_rate = to->static_rate,
		.is_global = to->global,
	};

	if (to->global) {
		memcpy(a.grh.dgid.raw, to->dgid, sizeof to->dgid);
		a.grh.flow_label = to->flow_label;
		a.grh.sgid_index = to->gid_index;
		a.grh.hop_limit = to->hop_limit;
		a.grh.traffic_class = to->traffic_class;
	}
	return ibv_create_ah(pd, &a);
}

static inline int acm_attach(struct ibv_qp *qp, const uint8_t *mgid, uint16_t mlid)
{
	union ibv_gid g;

	memcpy(g.raw, mgid, sizeof g.raw);
	return ibv_attach_mcast(qp, &g, mlid);
}

static inline int acm_detach(struct ibv_qp *qp, const uint8_t *mgid, uint16_t mlid)
{
	union ibv_gid g;

	memcpy(g.raw, mgid, sizeof g.raw);
	return ibv_detach_mcast(qp, &g, mlid);
}

/* Takes one event of the channel and asks for no other; -1 with errno. */
static inline int acm_cq_event(struct ibv_comp_channel *ch)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(ch, &cq, &context))
		return -1;
	ibv_ack_cq_events(cq, 1);
	return 0;
}

/* Takes one asynchronous event; -1 with errno. port is 0 for those of no port. */
static inline int acm_async_event(struct ibv_context *ctx, int *type, int *port)
{
	struct ibv_async_event e;

	if (ibv_get_async_event(ctx, &e))
		return -1;
	*type = (int)e.event_type;
	*port = 0;
	switch (e.event_type) {
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		*port = e.element.port_num;
		break;
	default:
		break;
	}
	ibv_ack_async_event(&e);
	return 0;
}

#endif
