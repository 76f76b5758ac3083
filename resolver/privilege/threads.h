/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One system call in every thread of the process: capabilities belong to threads, and
 * neither the kernel nor glibc changes those of all. Each thread is sent a signal whose
 * handler makes the call, one after the other, until no thread is left that has not.
 */
#ifndef ACMD_PRIVILEGE_THREADS_H
#define ACMD_PRIVILEGE_THREADS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The one signal that Go leaves to C and blocks in no thread; nothing else sends it. */
#define ACM_SIGNAL SIGRTMIN
#define ACM_LOOK 10000000   /* ns between two looks whether the thread still exists */
#define ACM_LOOKS 500       /* a thread that blocks the signal for so long is an error */

static struct {
	long number, a, b, c;
	int error; /* the first one */
	sem_t done;
} acm_call;

static inline void acm_make_call(void)
{
	if (syscall(acm_call.number, acm_call.a, acm_call.b, acm_call.c) == -1 && !acm_call.error)
		acm_call.error = errno;
}

static inline void acm_on_signal(int sig, siginfo_t *info, void *context)
{
	int saved = errno;

	(void)sig;
	(void)context;
	if (info->si_code != SI_TKILL || info->si_pid != getpid())
		return;
	acm_make_call();
	sem_post(&acm_call.done);
	errno = saved;
}

/* Waits until a thread has made the call, or is no more. */
static inline int acm_in_thread(pid_t tid)
{
	pid_t pid = getpid();
	int look;

	if (tid == (pid_t)syscall(SYS_gettid)) {
		acm_make_call();
		return 0;
	}
	if (syscall(SYS_tgkill, pid, tid, ACM_SIGNAL) == -1)
		return errno == ESRCH ? 0 : errno;
	for (look = 0; look < ACM_LOOKS; look++) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += ACM_LOOK;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			until.tv_sec++;
		}
		if (!sem_timedwait(&acm_call.done, &until))
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != ETIMEDOUT)
			return errno;
		if (syscall(SYS_tgkill, pid, tid, 0) == -1 && errno == ESRCH)
			return 0;
	}
	return ETIMEDOUT;
}

/* Goes through the threads that are there; met are those that were met before. */
static inline int acm_pass(pid_t **met, size_t *count, int *fresh)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int error = 0;

	if (!dir)
		return errno;
	while (!error && (entry = readdir(dir))) {
		pid_t tid = atoi(entry->d_name), *more;
		size_t i;

		for (i = 0; i < *count && (*met)[i] != tid; i++)
			;
		if (!tid || i < *count)
			continue;
		if (!(more = realloc(*met, (*count + 1) * sizeof(**met)))) {
			error = ENOMEM;
			break;
		}
		*met = more;
		(*met)[(*count)++] = tid;
		*fresh = 1;
		error = acm_in_thread(tid);
	}
	closedir(dir);
	return error;
}

/* Returns 0 or an error number. One caller at a time. */
static inline int acm_every_thread(long number, long a, long b, long c)
{
	struct sigaction act = { .sa_sigaction = acm_on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART }, was;
	pid_t *met = NULL;
	size_t count = 0;
	int error, fresh;

	acm_call.number = number;
	acm_call.a = a;
	acm_call.b = b;
	acm_call.c = c;
	acm_call.error = 0;
	if (sem_init(&acm_call.done, 0, 0))
		return errno;
	sigfillset(&act.sa_mask);
	if (sigaction(ACM_SIGNAL, &act, &was))
		return errno;
	do {
		fresh = 0;
		error = acm_pass(&met, &count, &fresh);
	} while (!error && fresh);
	free(met);
	if (sigaction(ACM_SIGNAL, &was, NULL) && !error)
		error = errno;
	return error ? error : acm_call.error;
}

#endif
