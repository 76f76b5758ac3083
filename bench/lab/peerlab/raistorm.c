/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * raistorm FIRST-GUID HOT COUNT PER-PROCESS SIGNAL-US restart|plain: COUNT calls of the stock rdma_getaddrinfo on
 * acmd's embedded fabric, nine of ten for one of HOT known nodes, the others for a node of its own each, while a
 * timer sends the process a signal every SIGNAL-US microseconds, whose handler is or is not installed with
 * SA_RESTART. Each path is compared with the one that the destination's number says. A process makes PER-PROCESS
 * calls, as librdmacm keeps one connection for its life.
 *
 * FIRST-GUID is the node GUID of node 0; node i has address 10.64.(i/250).(i%250+1), port GUID FIRST-GUID+16*i+1.
 */
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/sa.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
	long calls, routed, failed, wrong, signals;
} *sum;

static void count_signal(int sig)
{
	(void)sig;
	sum->signals++;
}

static void call(uint64_t guid, int node)
{
	struct sockaddr_in src = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a400001) };
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_src_addr = (struct sockaddr *)&src,
				       .ai_src_len = sizeof src };
	struct rdma_addrinfo *res;
	struct ibv_path_data *p;
	char dst[32];
	uint64_t got;

	snprintf(dst, sizeof dst, "10.64.%d.%d", node / 250, node % 250 + 1);
	sum->calls++;
	if (rdma_getaddrinfo(dst, "7471", &hints, &res)) {
		sum->failed++;
		return;
	}
	if (res->ai_route_len) {
		p = res->ai_route;
		memcpy(&got, p->path.dgid.raw + 8, sizeof got);
		sum->routed++;
		if (res->ai_route_len != sizeof *p || be64toh(got) != guid + 16 * (uint64_t)node + 1) {
			sum->wrong++;
			fprintf(stderr, "%s: length %zu, port GUID %#llx\n", dst, (size_t)res->ai_route_len,
				(unsigned long long)be64toh(got));
		}
	}
	rdma_freeaddrinfo(res);
}

int main(int argc, char **argv)
{
	struct sigaction sa = { .sa_handler = count_signal };
	struct itimerval timer = { 0 };
	long count, each, done = 0, cold;
	uint64_t guid;
	int hot, status;

	if (argc != 7) {
		fprintf(stderr, "usage: raistorm FIRST-GUID HOT COUNT PER-PROCESS SIGNAL-US restart|plain\n");
		return 2;
	}
	guid = strtoull(argv[1], NULL, 0);
	hot = atoi(argv[2]);
	count = atol(argv[3]);
	each = atol(argv[4]);
	timer.it_interval.tv_usec = timer.it_value.tv_usec = atol(argv[5]);
	if (!strcmp(argv[6], "restart"))
		sa.sa_flags = SA_RESTART;
	sum = mmap(NULL, sizeof *sum, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sum == MAP_FAILED) {
		perror("mmap");
		return 2;
	}
	for (cold = hot; done < count; done += each, cold += each / 10 + 1) {
		pid_t pid = fork();

		if (pid < 0) {
			perror("fork");
			return 2;
		}
		if (pid == 0) {
			call(guid, 1); /* sets the library up */
			sigaction(SIGALRM, &sa, NULL);
			setitimer(ITIMER_REAL, &timer, NULL);
			for (long i = 0; i < each; i++)
				call(guid, i % 10 == 9 ? (int)(hot + (cold - hot + i / 10) % 3000) : 1 + (int)((done + i) % hot));
			_exit(0);
		}
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			fprintf(stderr, "a process ended with status %#x\n", status);
			return 1;
		}
	}
	printf("%ld calls, %ld with a route, %ld failed, %ld wrong, %ld signals\n", sum->calls, sum->routed, sum->failed,
	       sum->wrong, sum->signals);
	return sum->wrong || sum->failed ? 1 : 0;
}
