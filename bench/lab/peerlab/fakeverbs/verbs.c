/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The verbs of devices, ports and everything but queue pairs. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ibv_device device;

/* ---------------------------------------------------------- verbs: device */

EXPORT struct ibv_device **ibv_get_device_list(int *num)
{
	struct ibv_device **list = calloc(2, sizeof *list);

	load_port_once();
	if (!list) {
		errno = ENOMEM;
		return NULL;
	}
	if (port_ok) {
		device.node_type = IBV_NODE_CA;
		device.transport_type = IBV_TRANSPORT_IB;
		snprintf(device.name, sizeof device.name, "%s", port.dev);
		snprintf(device.dev_name, sizeof device.dev_name, "fakeverbs0");
		snprintf(device.dev_path, sizeof device.dev_path,
			 "/sys/class/infiniband_verbs/fakeverbs0");
		snprintf(device.ibdev_path, sizeof device.ibdev_path,
			 "/sys/class/infiniband/%s", port.dev);
		list[0] = &device;
	}
	if (num)
		*num = port_ok;
	return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *d)
{
	return d->name;
}

EXPORT int ibv_get_device_index(struct ibv_device *d)
{
	(void)d;
	return -1; /* unknown, as on kernels without RDMA netlink */
}

EXPORT __be64 ibv_get_device_guid(struct ibv_device *d)
{
	(void)d;
	return htobe64(port.node_guid);
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct context *c = calloc(1, sizeof *c);
	int p[2];

	if (!c)
		return NULL;
	if (pipe2(p, O_CLOEXEC) < 0) {
		free(c);
		return NULL;
	}
	fcntl(p[1], F_SETFL, O_NONBLOCK);
	c->pub.device = d;
	c->pub.async_fd = p[0];
	c->pub.cmd_fd = -1;
	c->pub.num_comp_vectors = 1;
	c->event_wr = p[1];
	pthread_mutex_init(&c->pub.mutex, NULL);
	/* abi_compat stays NULL: not an extended context, so the inline
	 * wrappers fall back to the exported symbols below. */
	c->pub.ops.poll_cq = op_poll_cq;
	c->pub.ops.req_notify_cq = op_req_notify_cq;
	c->pub.ops.post_send = op_post_send;
	c->pub.ops.post_recv = op_post_recv;
	pthread_mutex_lock(&world);
	c->next = contexts;
	contexts = c;
	pthread_mutex_unlock(&world);
	return &c->pub;
}

EXPORT int ibv_close_device(struct ibv_context *pub)
{
	struct context *c = (struct context *)pub, **pp;

	pthread_mutex_lock(&world);
	for (pp = &contexts; *pp; pp = &(*pp)->next)
		if (*pp == c) {
			*pp = c->next;
			break;
		}
	pthread_mutex_unlock(&world);
	close(c->event_wr);
	close(c->pub.async_fd);
	free(c);
	return 0;
}

EXPORT int ibv_get_async_event(struct ibv_context *pub, struct ibv_async_event *ev)
{
	ssize_t n = read(pub->async_fd, ev, sizeof *ev);

	return n == (ssize_t)sizeof *ev ? 0 : -1;
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *ev)
{
	(void)ev;
}

EXPORT int ibv_query_device(struct ibv_context *pub, struct ibv_device_attr *a)
{
	(void)pub;
	memset(a, 0, sizeof *a);
	snprintf(a->fw_ver, sizeof a->fw_ver, "0.0.0");
	a->node_guid = a->sys_image_guid = htobe64(port.node_guid);
	a->max_qp = 64;
	a->max_qp_wr = 65536;
	a->max_sge = a->max_sge_rd = 8;
	a->max_cq = 64;
	a->max_cqe = 1 << 20;
	a->max_mr = 1 << 20;
	a->max_pd = 64;
	a->max_ah = 1 << 20;
	a->max_mcast_grp = 1024;
	a->max_mcast_qp_attach = 64;
	a->max_pkeys = (uint16_t)port.pkey_cnt;
	a->phys_port_cnt = port.port_num;
	return 0;
}

/*
 * Called by the inline ibv_query_port() for contexts that are not extended:
 * the structure is the original one, which ends before the "flags" member.
 */
EXPORT int ibv_query_port(struct ibv_context *pub, uint8_t num, struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr a;

	(void)pub;
	if (num < 1 || num > port.port_num)
		return EINVAL;
	memset(&a, 0, sizeof a);
	a.link_layer = IBV_LINK_LAYER_INFINIBAND;
	a.max_mtu = IBV_MTU_4096;
	a.active_mtu = (enum ibv_mtu)port.mtu;
	a.state = num == port.port_num ? (enum ibv_port_state)port.state : IBV_PORT_DOWN;
	a.gid_tbl_len = 1;
	a.max_msg_sz = MAX_PAYLOAD;
	a.pkey_tbl_len = (uint16_t)port.pkey_cnt;
	a.lid = port.lid;
	a.sm_lid = port.sm_lid;
	a.sm_sl = port.sm_sl;
	a.lmc = port.lmc;
	a.max_vl_num = 1;
	a.subnet_timeout = port.subnet_timeout;
	a.active_width = port.width;
	a.active_speed = port.speed;
	a.phys_state = port.state == IBV_PORT_DOWN ? 2 : 5;
	memcpy(out, &a, offsetof(struct ibv_port_attr, flags));
	return 0;
}

EXPORT int ibv_query_gid(struct ibv_context *pub, uint8_t num, int index, union ibv_gid *gid)
{
	(void)pub;
	memset(gid, 0, sizeof *gid);
	if (num != port.port_num || index != 0)
		return -1;
	*gid = port.gid;
	return 0;
}

EXPORT int ibv_query_pkey(struct ibv_context *pub, uint8_t num, int index, __be16 *pkey)
{
	(void)pub;
	if (num != port.port_num || index < 0 || index >= port.pkey_cnt)
		return -1;
	*pkey = htobe16(port.pkeys[index]);
	return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *pub, uint8_t num, __be16 pkey)
{
	int i;

	(void)pub;
	if (num == port.port_num)
		for (i = 0; i < port.pkey_cnt; i++)
			if (port.pkeys[i] == be16toh(pkey))
				return i;
	errno = EINVAL;
	return -1;
}

/* -------------------------------------------------- verbs: PD, MR, CQ, AH */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *pub)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);

	if (pd)
		pd->context = pub;
	return pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	static uint32_t key;
	struct ibv_mr *mr = calloc(1, sizeof *mr);

	(void)access;
	if (!mr)
		return NULL;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = len;
	mr->lkey = mr->rkey = __atomic_add_fetch(&key, 1, __ATOMIC_RELAXED);
	return mr;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *pub)
{
	struct channel *ch = calloc(1, sizeof *ch);
	int p[2];

	if (!ch || pipe2(p, O_CLOEXEC) < 0) {
		free(ch);
		return NULL;
	}
	ch->pub.context = pub;
	ch->pub.fd = p[0];
	ch->wr = p[1];
	return &ch->pub;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *pub)
{
	struct channel *ch = (struct channel *)pub;

	close(ch->wr);
	close(ch->pub.fd);
	free(ch);
	return 0;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *pub, int cqe, void *cq_context,
				    struct ibv_comp_channel *channel, int vector)
{
	struct cq *cq = calloc(1, sizeof *cq);

	(void)vector;
	if (!cq)
		return NULL;
	cq->cap = (unsigned)cqe + 64;
	cq->ring = calloc(cq->cap, sizeof *cq->ring);
	if (!cq->ring) {
		free(cq);
		return NULL;
	}
	cq->pub.context = pub;
	cq->pub.channel = channel;
	cq->pub.cq_context = cq_context;
	cq->pub.cqe = cqe;
	pthread_mutex_init(&cq->lock, NULL);
	if (channel)
		channel->refcnt++;
	return &cq->pub;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *pub)
{
	struct cq *cq = (struct cq *)pub;

	if (pub->channel)
		pub->channel->refcnt--;
	free(cq->ring);
	free(cq);
	return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **cq_context)
{
	void *p;

	if (read(ch->fd, &p, sizeof p) != (ssize_t)sizeof p)
		return -1;
	*cq = p;
	*cq_context = (*cq)->cq_context;
	return 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	(void)cq;
	(void)n;
}

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ah *ah = calloc(1, sizeof *ah);

	if (!ah)
		return NULL;
	ah->pub.context = pd->context;
	ah->pub.pd = pd;
	ah->attr = *attr;
	return &ah->pub;
}

EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}
