/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The verbs of queue pairs. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static unsigned qpn_seq;

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct qp *qp;
	int big = 4 << 20;
	struct timeval patience = { .tv_usec = 100000 };

	if (init->qp_type != IBV_QPT_UD) {
		errno = EINVAL;
		return NULL;
	}
	qp = calloc(1, sizeof *qp);
	if (!qp)
		return NULL;
	qp->rq_cap = init->cap.max_recv_wr ? init->cap.max_recv_wr : 1;
	qp->rq = calloc(qp->rq_cap, sizeof *qp->rq);
	qp->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	qp->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (!qp->rq || qp->sock < 0 || qp->stop_fd < 0)
		goto fail;
	setsockopt(qp->sock, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
	setsockopt(qp->sock, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
	setsockopt(qp->sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	/* differs from one process to the next, like on a real HCA */
	qp->pub.qp_num = ((uint32_t)getpid() << 6 & 0x7fffc0) |
			 (__atomic_add_fetch(&qpn_seq, 1, __ATOMIC_RELAXED) & 0x3f);
	snprintf(qp->name, sizeof qp->name, "u.%04x.%06x", port.lid, qp->pub.qp_num);
	make_path(sa.sun_path, sizeof sa.sun_path, "%s", qp->name);
	unlink(sa.sun_path);
	if (bind(qp->sock, (struct sockaddr *)&sa, sizeof sa) < 0) {
		fprintf(stderr, "fakeverbs: bind %s: %s\n", sa.sun_path, strerror(errno));
		goto fail;
	}
	qp->pub.context = pd->context;
	qp->pub.qp_context = init->qp_context;
	qp->pub.pd = pd;
	qp->pub.send_cq = init->send_cq;
	qp->pub.recv_cq = init->recv_cq;
	qp->pub.qp_type = init->qp_type;
	qp->pub.state = IBV_QPS_RESET;
	qp->scq = (struct cq *)init->send_cq;
	qp->rcq = (struct cq *)init->recv_cq;
	pthread_mutex_init(&qp->lock, NULL);
	if (pthread_create(&qp->thread, NULL, rx_loop, qp))
		goto fail;
	pthread_mutex_lock(&world);
	qp->next = qps;
	qps = qp;
	pthread_mutex_unlock(&world);
	note("QP %06x at %s\n", qp->pub.qp_num, sa.sun_path);
	return &qp->pub;
fail:
	if (qp->sock >= 0)
		close(qp->sock);
	if (qp->stop_fd >= 0)
		close(qp->stop_fd);
	free(qp->rq);
	free(qp);
	return NULL;
}

EXPORT int ibv_modify_qp(struct ibv_qp *pub, struct ibv_qp_attr *attr, int mask)
{
	struct qp *qp = (struct qp *)pub;

	pthread_mutex_lock(&qp->lock);
	if (mask & IBV_QP_QKEY)
		qp->qkey = attr->qkey;
	if (mask & IBV_QP_PKEY_INDEX && attr->pkey_index < port.pkey_cnt)
		qp->pkey_index = attr->pkey_index;
	if (mask & IBV_QP_STATE) {
		pub->state = attr->qp_state;
		if (pub->state == IBV_QPS_RESET)
			qp->rq_head = qp->rq_count = 0; /* without completions */
		if (pub->state == IBV_QPS_ERR)
			flush_receives(qp);
	}
	pthread_mutex_unlock(&qp->lock);
	return 0;
}

EXPORT int ibv_attach_mcast(struct ibv_qp *pub, const union ibv_gid *gid, uint16_t lid)
{
	struct qp *qp = (struct qp *)pub;
	struct mgroup *g = calloc(1, sizeof *g);
	char dir[256], path[512];
	int fd;

	(void)lid;
	if (!g)
		return ENOMEM;
	g->gid = *gid;
	group_dir(dir, sizeof dir, gid);
	if (mkdir(dir, 0777) < 0 && errno != EEXIST)
		note("mkdir %s: %s\n", dir, strerror(errno));
	snprintf(path, sizeof path, "%s/%s", dir, qp->name);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
	if (fd < 0) {
		free(g);
		return errno;
	}
	close(fd);
	pthread_mutex_lock(&qp->lock);
	g->next = qp->groups;
	qp->groups = g;
	pthread_mutex_unlock(&qp->lock);
	note("QP %06x joined %s\n", pub->qp_num, dir);
	return 0;
}

EXPORT int ibv_detach_mcast(struct ibv_qp *pub, const union ibv_gid *gid, uint16_t lid)
{
	struct qp *qp = (struct qp *)pub;
	struct mgroup **pp, *g = NULL;
	char dir[256], path[512];

	(void)lid;
	group_dir(dir, sizeof dir, gid);
	snprintf(path, sizeof path, "%s/%s", dir, qp->name);
	unlink(path);
	pthread_mutex_lock(&qp->lock);
	for (pp = &qp->groups; *pp; pp = &(*pp)->next)
		if (!memcmp((*pp)->gid.raw, gid->raw, 16)) {
			g = *pp;
			*pp = g->next;
			break;
		}
	pthread_mutex_unlock(&qp->lock);
	free(g);
	return 0;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *pub)
{
	struct qp *qp = (struct qp *)pub, **pp;
	uint64_t one = 1;
	char path[256];

	while (qp->groups)
		ibv_detach_mcast(pub, &qp->groups->gid, 0);
	if (write(qp->stop_fd, &one, sizeof one) == (ssize_t)sizeof one)
		pthread_join(qp->thread, NULL);
	pthread_mutex_lock(&world);
	for (pp = &qps; *pp; pp = &(*pp)->next)
		if (*pp == qp) {
			*pp = qp->next;
			break;
		}
	pthread_mutex_unlock(&world);
	make_path(path, sizeof path, "%s", qp->name);
	unlink(path);
	close(qp->sock);
	close(qp->stop_fd);
	free(qp->rq);
	free(qp);
	return 0;
}
