/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Completions, and UD datagrams over unix sockets. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct context *contexts;
struct qp *qps;
pthread_mutex_t world = PTHREAD_MUTEX_INITIALIZER;

static const char *wire_dir(void)
{
	const char *d = getenv("FAKEVERBS_DIR");

	return d && *d ? d : ".";
}

void make_path(char *out, size_t cap, const char *fmt, ...)
{
	int n = snprintf(out, cap, "%s/", wire_dir());
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(out + n, cap - (size_t)n, fmt, ap);
	va_end(ap);
}

void group_dir(char *out, size_t cap, const union ibv_gid *g)
{
	char hex[33];
	int i;

	for (i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", g->raw[i]);
	make_path(out, cap, "m.%s", hex);
}

/* ------------------------------------------------------------ completions */

static void cq_push(struct cq *cq, const struct ibv_wc *wc)
{
	int fire = 0;

	pthread_mutex_lock(&cq->lock);
	if (cq->count < cq->cap) {
		cq->ring[(cq->head + cq->count) % cq->cap] = *wc;
		cq->count++;
	} else {
		note("CQ overrun, completion lost\n");
	}
	if (cq->armed) {
		cq->armed = 0;
		fire = 1;
	}
	pthread_mutex_unlock(&cq->lock);
	if (fire && cq->pub.channel) {
		struct channel *ch = (struct channel *)cq->pub.channel;
		void *p = cq;

		while (write(ch->wr, &p, sizeof p) < 0 && errno == EINTR)
			;
	}
}

int op_poll_cq(struct ibv_cq *pub, int n, struct ibv_wc *wc)
{
	struct cq *cq = (struct cq *)pub;
	int got = 0;

	pthread_mutex_lock(&cq->lock);
	while (got < n && cq->count) {
		wc[got++] = cq->ring[cq->head];
		cq->head = (cq->head + 1) % cq->cap;
		cq->count--;
	}
	pthread_mutex_unlock(&cq->lock);
	return got;
}

int op_req_notify_cq(struct ibv_cq *pub, int solicited)
{
	struct cq *cq = (struct cq *)pub;

	(void)solicited;
	pthread_mutex_lock(&cq->lock);
	cq->armed = 1;
	pthread_mutex_unlock(&cq->lock);
	return 0;
}

/* ------------------------------------------------------------- data path */

/* Completes a work request with an error. */
static void cq_fail(struct cq *cq, struct qp *qp, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = { .wr_id = id, .status = status, .qp_num = qp->pub.qp_num };

	if (cq)
		cq_push(cq, &wc);
}

void flush_receives(struct qp *qp)
{
	for (; qp->rq_count; qp->rq_count--) {
		cq_fail(qp->rcq, qp, qp->rq[qp->rq_head].wr_id, IBV_WC_WR_FLUSH_ERR);
		qp->rq_head = (qp->rq_head + 1) % qp->rq_cap;
	}
}

int op_post_recv(struct ibv_qp *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp *qp = (struct qp *)pub;
	int rc = 0;

	pthread_mutex_lock(&qp->lock);
	for (; wr; wr = wr->next) {
		struct rq_slot *slot;

		if (qp->rq_count == qp->rq_cap || wr->num_sge != 1) {
			*bad = wr;
			rc = wr->num_sge != 1 ? EINVAL : ENOMEM;
			break;
		}
		slot = &qp->rq[(qp->rq_head + qp->rq_count) % qp->rq_cap];
		slot->wr_id = wr->wr_id;
		slot->buf = (uint8_t *)(uintptr_t)wr->sg_list[0].addr;
		slot->len = wr->sg_list[0].length;
		qp->rq_count++;
	}
	if (qp->pub.state == IBV_QPS_ERR)
		flush_receives(qp);
	pthread_mutex_unlock(&qp->lock);
	return rc;
}

static void send_to(struct qp *qp, const char *path, const void *pkt, size_t len)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	/* Blocks (up to SO_SNDTIMEO) when the receiver's queue is full, which is
	 * after net.unix.max_dgram_qlen datagrams. Every receiver has a thread
	 * that does nothing but drain it, so this cannot deadlock. */
	snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
	if (sendto(qp->sock, pkt, len, 0, (struct sockaddr *)&sa, sizeof sa) < 0) {
		note("send to %s: %s\n", path, strerror(errno));
		if (errno == ECONNREFUSED)
			unlink(path); /* nobody is bound there any more */
	}
}

static void send_group(struct qp *qp, const union ibv_gid *mgid, const void *pkt, size_t len)
{
	char dir[sizeof(((struct sockaddr_un *)0)->sun_path)], path[512];
	struct dirent *de;
	DIR *d;

	group_dir(dir, sizeof dir, mgid);
	d = opendir(dir);
	if (!d)
		return;
	while ((de = readdir(d))) {
		if (de->d_name[0] != 'u' || !strcmp(de->d_name, qp->name))
			continue; /* a sender does not hear itself */
		make_path(path, sizeof path, "%s", de->d_name);
		if (access(path, F_OK)) {
			char gone[1024];

			snprintf(gone, sizeof gone, "%s/%s", dir, de->d_name);
			unlink(gone);
			continue;
		}
		send_to(qp, path, pkt, len);
	}
	closedir(d);
}

static void fill_grh(uint8_t *grh, const struct ibv_ah_attr *at, unsigned payload)
{
	uint32_t word = htobe32(6u << 28 | (uint32_t)at->grh.traffic_class << 20 |
				(at->grh.flow_label & 0xfffff));
	/* BTH + DETH + payload padded to 4 + ICRC */
	uint16_t paylen = htobe16((uint16_t)(12 + 8 + ((payload + 3) & ~3u) + 4));

	memcpy(grh, &word, 4);
	memcpy(grh + 4, &paylen, 2);
	grh[6] = 0x1b;
	grh[7] = at->grh.hop_limit;
	memcpy(grh + 8, port.gid.raw, 16);
	memcpy(grh + 24, at->grh.dgid.raw, 16);
}

int op_post_send(struct ibv_qp *pub, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *qp = (struct qp *)pub;

	for (; wr; wr = wr->next) {
		struct { struct wire_hdr h; uint8_t data[MAX_PAYLOAD]; } pkt;
		const struct ah *ah = (const struct ah *)wr->wr.ud.ah;
		struct ibv_wc wc = { 0 };
		unsigned len = 0;
		char path[512];
		int i;

		if (wr->opcode != IBV_WR_SEND || !ah || qp->pub.state < IBV_QPS_RTS) {
			*bad = wr;
			return EINVAL;
		}
		pthread_mutex_lock(&qp->lock);
		if (qp->fail_send && qp->pub.state == IBV_QPS_RTS) {
			qp->fail_send = 0;
			qp->pub.state = IBV_QPS_SQE;
			cq_fail(qp->scq, qp, wr->wr_id, IBV_WC_LOC_QP_OP_ERR);
			pthread_mutex_unlock(&qp->lock);
			continue;
		}
		if (qp->pub.state != IBV_QPS_RTS) {
			cq_fail(qp->scq, qp, wr->wr_id, IBV_WC_WR_FLUSH_ERR);
			pthread_mutex_unlock(&qp->lock);
			continue;
		}
		pthread_mutex_unlock(&qp->lock);
		for (i = 0; i < wr->num_sge; i++) {
			if (len + wr->sg_list[i].length > MAX_PAYLOAD) {
				*bad = wr;
				return EINVAL;
			}
			memcpy(pkt.data + len, (void *)(uintptr_t)wr->sg_list[i].addr,
			       wr->sg_list[i].length);
			len += wr->sg_list[i].length;
		}
		memset(&pkt.h, 0, sizeof pkt.h);
		pkt.h.magic = htobe32(WIRE_MAGIC);
		pkt.h.version = WIRE_VERSION;
		pkt.h.kind = WIRE_DATA;
		pkt.h.sl = ah->attr.sl;
		pkt.h.slid = htobe16((uint16_t)(port.lid | ah->attr.src_path_bits));
		pkt.h.dlid = htobe16(ah->attr.dlid);
		pkt.h.src_qpn = htobe32(qp->pub.qp_num);
		pkt.h.dst_qpn = htobe32(wr->wr.ud.remote_qpn);
		/* a controlled Q_Key in the WR means: use the QP's own */
		pkt.h.qkey = htobe32(wr->wr.ud.remote_qkey & 0x80000000u ?
				     qp->qkey : wr->wr.ud.remote_qkey);
		pkt.h.pkey = htobe16(port.pkeys[qp->pkey_index]);
		pkt.h.length = htobe16((uint16_t)len);
		if (ah->attr.is_global) {
			pkt.h.flags |= WIRE_F_GRH;
			fill_grh(pkt.h.grh, &ah->attr, len);
		}
		if (wr->wr.ud.remote_qpn == MCAST_QPN) {
			pkt.h.flags |= WIRE_F_MCAST;
			send_group(qp, &ah->attr.grh.dgid, &pkt, sizeof pkt.h + len);
		} else {
			make_path(path, sizeof path, "u.%04x.%06x", ah->attr.dlid,
				  wr->wr.ud.remote_qpn);
			send_to(qp, path, &pkt, sizeof pkt.h + len);
		}
		wc.wr_id = wr->wr_id;
		wc.status = IBV_WC_SUCCESS;
		wc.opcode = IBV_WC_SEND;
		wc.qp_num = qp->pub.qp_num;
		wc.byte_len = len;
		if (qp->scq)
			cq_push(qp->scq, &wc);
	}
	return 0;
}

static int pkeys_talk(uint16_t a, uint16_t b)
{
	return ((a ^ b) & 0x7fff) == 0 && ((a | b) & 0x8000);
}

static void deliver_event(uint32_t type, uint32_t state)
{
	struct ibv_async_event ev = { .event_type = (enum ibv_event_type)type };
	struct context *c;

	if (state)
		port.state = (uint8_t)state;
	ev.element.port_num = port.port_num;
	pthread_mutex_lock(&world);
	for (c = contexts; c; c = c->next)
		if (write(c->event_wr, &ev, sizeof ev) < 0)
			note("event lost: %s\n", strerror(errno));
	pthread_mutex_unlock(&world);
}

static int in_group(struct qp *qp, const uint8_t *dgid)
{
	struct mgroup *g;

	for (g = qp->groups; g; g = g->next)
		if (!memcmp(g->gid.raw, dgid, 16))
			return 1;
	return 0;
}

static void deliver(struct qp *qp, const struct wire_hdr *h, const uint8_t *data, unsigned len)
{
	struct ibv_wc wc = { 0 };
	struct rq_slot slot;
	const char *why = NULL;

	pthread_mutex_lock(&qp->lock);
	if (be32toh(h->qkey) != qp->qkey)
		why = "Q_Key mismatch";
	else if (!pkeys_talk(be16toh(h->pkey), port.pkeys[qp->pkey_index]))
		why = "P_Key mismatch";
	else if ((h->flags & WIRE_F_MCAST) && !in_group(qp, h->grh + 24))
		why = "not in the multicast group";
	else if (!(h->flags & WIRE_F_MCAST) && be32toh(h->dst_qpn) != qp->pub.qp_num)
		why = "wrong QP number";
	else if (qp->pub.state != IBV_QPS_RTS && qp->pub.state != IBV_QPS_RTR && qp->pub.state != IBV_QPS_SQE)
		why = "queue pair is not ready to receive";
	else if (!qp->rq_count)
		why = "receive queue empty";
	else if (qp->rq[qp->rq_head].len < len + GRH_BYTES)
		why = "receive buffer too small";
	if (!why) {
		slot = qp->rq[qp->rq_head];
		qp->rq_head = (qp->rq_head + 1) % qp->rq_cap;
		qp->rq_count--;
	}
	pthread_mutex_unlock(&qp->lock);
	if (why) {
		note("dropped datagram from lid %u qp %06x: %s\n", be16toh(h->slid),
		     be32toh(h->src_qpn), why);
		return;
	}
	memcpy(slot.buf, h->grh, GRH_BYTES);
	memcpy(slot.buf + GRH_BYTES, data, len);
	wc.wr_id = slot.wr_id;
	wc.status = IBV_WC_SUCCESS;
	wc.opcode = IBV_WC_RECV;
	wc.byte_len = len + GRH_BYTES;
	wc.qp_num = qp->pub.qp_num;
	wc.src_qp = be32toh(h->src_qpn);
	wc.wc_flags = h->flags & WIRE_F_GRH ? IBV_WC_GRH : 0;
	wc.pkey_index = qp->pkey_index;
	wc.slid = be16toh(h->slid);
	wc.sl = h->sl;
	wc.dlid_path_bits = h->flags & WIRE_F_MCAST ? 0 :
			    (uint8_t)(be16toh(h->dlid) & ((1u << port.lmc) - 1));
	cq_push(qp->rcq, &wc);
}

static void deliver_fault(struct qp *qp, uint32_t what)
{
	pthread_mutex_lock(&qp->lock);
	if (what == 1) {
		qp->fail_send = 1;
	} else {
		qp->pub.state = IBV_QPS_ERR;
		flush_receives(qp);
	}
	pthread_mutex_unlock(&qp->lock);
}

void *rx_loop(void *arg)
{
	struct qp *qp = arg;
	struct { struct wire_hdr h; uint8_t data[MAX_PAYLOAD]; } pkt;
	int more = 0; /* datagrams to take before the next poll */

	for (;;) {
		struct pollfd p[2] = {
			{ .fd = qp->sock, .events = POLLIN },
			{ .fd = qp->stop_fd, .events = POLLIN },
		};
		ssize_t n;

		if (!more) {
			if (poll(p, 2, -1) < 0 && errno != EINTR)
				return NULL;
			if (p[1].revents)
				return NULL;
			more = RX_BATCH;
		}
		n = recv(qp->sock, &pkt, sizeof pkt, MSG_DONTWAIT);
		more = n < 0 ? 0 : more - 1;
		if (n < (ssize_t)sizeof pkt.h || be32toh(pkt.h.magic) != WIRE_MAGIC ||
		    pkt.h.version != WIRE_VERSION)
			continue;
		if (pkt.h.kind == WIRE_EVENT) {
			deliver_event(be32toh(pkt.h.dst_qpn), be32toh(pkt.h.arg));
			continue;
		}
		if (pkt.h.kind == WIRE_FAULT) {
			deliver_fault(qp, be32toh(pkt.h.dst_qpn));
			continue;
		}
		if (n != (ssize_t)(sizeof pkt.h + be16toh(pkt.h.length)))
			continue;
		deliver(qp, &pkt.h, pkt.data, be16toh(pkt.h.length));
	}
}
