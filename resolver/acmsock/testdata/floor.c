// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The floor and the load of the benchmark of cached resolves.
//
//   floor echo PATH                  epoll server: 88 bytes back for each 160
//   floor load PATH CONNS N BATCH    N requests over CONNS connections, BATCH
//                                    in one write; prints ns elapsed and failures
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { REQ = 160, REP = 88, MAXBATCH = 64 };

static struct sockaddr_un addr = { .sun_family = AF_UNIX };
static long per_conn;
static int batch;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int echo(void)
{
	struct epoll_event ev = { .events = EPOLLIN }, evs[128];
	unsigned char b[8192], r[8192];
	int l = socket(AF_UNIX, SOCK_STREAM, 0), e = epoll_create1(0);
	if (bind(l, (void *)&addr, sizeof addr) || listen(l, 1024))
		return perror("listen"), 1;
	ev.data.fd = l;
	epoll_ctl(e, EPOLL_CTL_ADD, l, &ev);
	for (;;) {
		int n = epoll_wait(e, evs, 128, -1);
		for (int i = 0; i < n; i++) {
			int s = evs[i].data.fd;
			if (s == l) {
				ev.data.fd = accept4(l, 0, 0, SOCK_NONBLOCK);
				epoll_ctl(e, EPOLL_CTL_ADD, ev.data.fd, &ev);
				continue;
			}
			ssize_t got = recv(s, b, sizeof b, 0);
			if (got <= 0) {
				close(s);
				continue;
			}
			size_t len = 0;
			for (ssize_t p = 0; p + REQ <= got; p += REQ, len += REP) {
				memcpy(r + len, b + p, REP);
				r[len + 6] = REP;
			}
			send(s, r, len, MSG_NOSIGNAL);
		}
	}
}

static void put(unsigned char *b, uint16_t n)
{
	memset(b, 0, REQ);
	b[0] = b[1] = 1;
	b[6] = REQ;
	b[8] = 1;
	b[16] = 1, b[20] = 2;
	b[24] = 10, b[27] = 1;
	b[88] = 2, b[92] = 2;
	b[96] = 10, b[98] = n >> 8, b[99] = n;
}

static void *client(void *arg)
{
	unsigned char b[REQ * MAXBATCH], r[REP * MAXBATCH];
	long bad = 0;
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	(void)arg;
	if (connect(s, (void *)&addr, sizeof addr))
		return (void *)-1;
	for (int i = 0; i < batch; i++)
		put(b + i * REQ, i);
	for (long n = 0; n < per_conn; n += batch) {
		size_t got = 0, want = (size_t)batch * REP;
		if (send(s, b, (size_t)batch * REQ, MSG_NOSIGNAL) != batch * REQ)
			return (void *)-1;
		while (got < want) {
			ssize_t k = recv(s, r + got, want - got, 0);
			if (k <= 0)
				return (void *)-1;
			got += k;
		}
		for (int i = 0; i < batch; i++)
			bad += r[i * REP + 6] != REP || r[i * REP + 2] != 0;
	}
	close(s);
	return (void *)bad;
}

static int load(int conns)
{
	pthread_t t[1024];
	long bad = 0;
	uint64_t t0 = now();
	for (int i = 0; i < conns; i++)
		pthread_create(&t[i], 0, client, 0);
	for (int i = 0; i < conns; i++) {
		void *v;
		pthread_join(t[i], &v);
		bad += (long)v != 0;
	}
	printf("%llu %ld\n", (unsigned long long)(now() - t0), bad);
	return bad != 0;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	strncpy(addr.sun_path, argv[2], sizeof addr.sun_path - 1);
	if (!strcmp(argv[1], "echo"))
		return echo();
	if (argc != 6)
		return 2;
	int conns = atoi(argv[3]);
	batch = atoi(argv[5]);
	if (conns < 1 || conns > 1024 || batch < 1 || batch > MAXBATCH)
		return 2;
	per_conn = atol(argv[4]) / conns;
	return load(conns);
}
