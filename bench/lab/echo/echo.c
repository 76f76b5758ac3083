// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * echo.c: the floor under any daemon that answers ibacm's clients. One thread
 * waits with epoll, reads a request of any length, and writes the same canned
 * 88-byte answer with the request's transaction ID in it: two system calls and
 * two wake-ups, and nothing between them. It does not look at what is asked.
 *
 *     echo PATH|PORT RECORD
 *
 * PATH (it contains a slash) is a unix socket, PORT a TCP port on loopback. RECORD is the 72-byte
 * entry of the answer, in hexadecimal. It says "ready" once it listens, and ends
 * with SIGTERM or when its standard input is closed.
 */
#define _GNU_SOURCE /* accept4 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { HEADER = 16, ENTRY = 72, MAX_MESSAGE = 592, BATCH = 64 };

static unsigned char answer[HEADER + ENTRY];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int listen_on(const char *where)
{
	int fd, one = 1;

	if (strchr(where, '/')) {
		struct sockaddr_un sa = { .sun_family = AF_UNIX };

		if (strlen(where) >= sizeof(sa.sun_path)) {
			errno = ENAMETOOLONG;
			die(where);
		}
		strcpy(sa.sun_path, where);
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
			die(where);
	} else {
		struct sockaddr_in sa = { .sin_family = AF_INET };

		sa.sin_port = htons((unsigned short)atoi(where));
		sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		    bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
			die(where);
	}
	if (listen(fd, 1024) < 0)
		die("listen");
	return fd;
}

static void watch(int ep, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = fd };

	if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) < 0)
		die("epoll_ctl");
}

static void accept_one(int ep, int listener)
{
	int one = 1, fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* fails on unix sockets */
	watch(ep, fd);
}

static void serve(int fd)
{
	unsigned char in[MAX_MESSAGE];
	ssize_t n = recv(fd, in, sizeof(in), 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < HEADER) {
		close(fd);
		return;
	}
	memcpy(answer + 8, in + 8, 8);
	if (send(fd, answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
		close(fd);
}

int main(int argc, char **argv)
{
	struct epoll_event ready[BATCH];
	unsigned short length = sizeof(answer);
	int listener, ep, i, n;

	if (argc != 3 || strlen(argv[2]) != 2 * ENTRY) {
		fprintf(stderr, "usage: echo PATH|PORT RECORD\n");
		return 2;
	}
	answer[0] = 1;
	answer[1] = 1;
	memcpy(answer + 6, &length, sizeof(length));
	for (i = 0; i < ENTRY; i++)
		if (sscanf(argv[2] + 2 * i, "%2hhx", &answer[HEADER + i]) != 1)
			return 2;
	listener = listen_on(argv[1]);
	ep = epoll_create1(EPOLL_CLOEXEC);
	if (ep < 0)
		die("epoll_create1");
	watch(ep, listener);
	watch(ep, STDIN_FILENO);
	puts("ready");
	fflush(stdout);
	for (;;) {
		n = epoll_wait(ep, ready, BATCH, -1);
		for (i = 0; i < n; i++) {
			if (ready[i].data.fd == STDIN_FILENO)
				return 0;
			if (ready[i].data.fd == listener)
				accept_one(ep, listener);
			else
				serve(ready[i].data.fd);
		}
	}
}
