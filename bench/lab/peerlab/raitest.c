/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * raitest SRC-IP DST-IP [COUNT]: resolve DST through the stock librdmacm, which
 * asks the ACM service, and show the path records that it hands back.
 */
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/sa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	struct sockaddr_in src = { .sin_family = AF_INET };
	struct rdma_addrinfo hints = { 0 }, *res;
	long i, n = argc > 3 ? atol(argv[3]) : 1, routed = 0;
	double t0 = 0;

	if (argc < 3 || inet_pton(AF_INET, argv[1], &src.sin_addr) != 1) {
		fprintf(stderr, "usage: raitest SRC-IP DST-IP [COUNT]\n");
		return 2;
	}
	hints.ai_port_space = RDMA_PS_TCP;
	hints.ai_src_addr = (struct sockaddr *)&src;
	hints.ai_src_len = sizeof src;
	for (i = 0; i < n; i++) {
		if (i == 1)
			t0 = now(); /* the first call also initializes */
		if (rdma_getaddrinfo(argv[2], "7471", &hints, &res)) {
			perror("rdma_getaddrinfo");
			return 1;
		}
		if (res->ai_route_len)
			routed++;
		if (i == 0) {
			struct ibv_path_data *p = res->ai_route;
			char sgid[INET6_ADDRSTRLEN], dgid[INET6_ADDRSTRLEN];

			printf("route length %zu\n", (size_t)res->ai_route_len);
			if (res->ai_route_len >= (socklen_t)sizeof *p) {
				inet_ntop(AF_INET6, p->path.sgid.raw, sgid, sizeof sgid);
				inet_ntop(AF_INET6, p->path.dgid.raw, dgid, sizeof dgid);
				printf("flags %#x sgid %s dgid %s slid %u dlid %u pkey %#x mtu %u rate %u\n",
				       p->flags, sgid, dgid, ntohs(p->path.slid), ntohs(p->path.dlid),
				       ntohs(p->path.pkey), p->path.mtu & 63, p->path.rate & 63);
			}
		}
		rdma_freeaddrinfo(res);
	}
	if (n > 1)
		printf("%ld of %ld with a route, %.0f per second\n", routed, n, (double)(n - 1) / (now() - t0));
	return routed == n ? 0 : 1;
}
