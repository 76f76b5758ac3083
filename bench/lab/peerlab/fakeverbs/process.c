/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is not verbs: other run directories, and an orderly end. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------- /run/ibacm* redirection */
/*
 * ibacm's rendezvous paths are compiled in.  With FAKEVERBS_RUN set, any of
 * these calls that names /run/ibacm* is pointed into that directory instead,
 * so that several instances can run side by side without namespaces.
 */
static const char *moved(const char *path, char *buf, size_t cap)
{
	static const char head[] = "/run/ibacm";
	const char *to = getenv("FAKEVERBS_RUN");

	if (!to || !*to || !path || strncmp(path, head, sizeof head - 1))
		return path;
	snprintf(buf, cap, "%s/%s", to, path + sizeof "/run/" - 1);
	return buf;
}

#define REAL(name) \
	static __typeof__(name) *real; \
	if (!real) \
		real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static const struct sockaddr *moved_sa(const struct sockaddr *sa, socklen_t *len,
				       struct sockaddr_un *un)
{
	const struct sockaddr_un *in = (const struct sockaddr_un *)sa;
	char buf[512];
	const char *p;

	if (!sa || *len <= offsetof(struct sockaddr_un, sun_path) ||
	    sa->sa_family != AF_UNIX || in->sun_path[0] != '/')
		return sa;
	p = moved(in->sun_path, buf, sizeof buf);
	if (p == in->sun_path)
		return sa;
	memset(un, 0, sizeof *un);
	un->sun_family = AF_UNIX;
	snprintf(un->sun_path, sizeof un->sun_path, "%s", p);
	*len = sizeof *un;
	return (const struct sockaddr *)un;
}

EXPORT int bind(int fd, const struct sockaddr *sa, socklen_t len)
{
	struct sockaddr_un un;
	REAL(bind);

	sa = moved_sa(sa, &len, &un);
	return real(fd, sa, len);
}

EXPORT int connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	struct sockaddr_un un;
	REAL(connect);

	sa = moved_sa(sa, &len, &un);
	return real(fd, sa, len);
}

EXPORT int unlink(const char *path)
{
	char buf[512];
	REAL(unlink);

	return real(moved(path, buf, sizeof buf));
}

EXPORT int symlink(const char *target, const char *path)
{
	char buf[512];
	REAL(symlink);

	return real(target, moved(path, buf, sizeof buf));
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	char buf[512];
	REAL(fopen);

	return real(moved(path, buf, sizeof buf), mode);
}

/* -------------------------------------------------------- orderly shutdown */
/*
 * ibacm leaves SIGTERM at its default action, so a plain kill would skip the
 * exit handlers: ibsim would keep the client slot (it has ten) and libumad2sim
 * would leave its sysfs copy behind.  FAKEVERBS_TERM_EXIT=1 turns SIGTERM and
 * SIGINT into exit(0).
 */
static void *term_wait(void *arg)
{
	sigset_t *set = arg;
	struct qp *qp;
	int sig;

	sigwait(set, &sig);
	pthread_mutex_lock(&world);
	for (qp = qps; qp; qp = qp->next) {
		struct mgroup *g;
		char path[512], dir[256];

		for (g = qp->groups; g; g = g->next) {
			group_dir(dir, sizeof dir, &g->gid);
			snprintf(path, sizeof path, "%s/%s", dir, qp->name);
			unlink(path);
		}
		make_path(path, sizeof path, "%s", qp->name);
		unlink(path);
	}
	exit(0);
}

__attribute__((constructor)) static void term_setup(void)
{
	static sigset_t set;
	pthread_t t;

	if (!env_num("FAKEVERBS_TERM_EXIT", 0))
		return;
	unsetenv("FAKEVERBS_TERM_EXIT"); /* not for children */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (pthread_create(&t, NULL, term_wait, &set) == 0)
		pthread_detach(t);
}
