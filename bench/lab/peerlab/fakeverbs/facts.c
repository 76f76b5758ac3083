/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the device and its port look like. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <fcntl.h>
#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct portinfo port;
static pthread_once_t port_once = PTHREAD_ONCE_INIT;
int port_ok;
static int debug;

void note(const char *fmt, ...)
{
	va_list ap;

	if (!debug)
		return;
	va_start(ap, fmt);
	fprintf(stderr, "fakeverbs[%d]: ", getpid());
	vfprintf(stderr, fmt, ap);
	va_end(ap);
}

/* open(2) is deliberately the plain symbol: libumad2sim wraps it. */
static int slurp(const char *path, char *buf, size_t cap)
{
	ssize_t n;
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		return -1;
	n = read(fd, buf, cap - 1);
	close(fd);
	if (n < 0)
		return -1;
	while (n > 0 && (buf[n - 1] == '\n' || buf[n - 1] == ' '))
		n--;
	buf[n] = 0;
	return (int)n;
}

static int sysfs_str(char *out, size_t cap, const char *fmt, ...)
{
	char path[512];
	size_t len = (size_t)snprintf(path, sizeof path, "/sys/class/infiniband/%s/", port.dev);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(path + len, sizeof path - len, fmt, ap);
	va_end(ap);
	return slurp(path, out, cap);
}

static long sysfs_num(long fallback, const char *leaf)
{
	char s[64];

	if (sysfs_str(s, sizeof s, "ports/%u/%s", port.port_num, leaf) <= 0)
		return fallback;
	return strtol(s, NULL, 0);
}

long env_num(const char *name, long fallback)
{
	const char *s = getenv(name);

	return s && *s ? strtol(s, NULL, 0) : fallback;
}

/* "0011:2233:..." -> bytes; colons are ignored */
static int hex_bytes(const char *s, uint8_t *out, int want)
{
	int nib = 0;

	for (; *s && nib < want * 2; s++) {
		int v;

		if (*s >= '0' && *s <= '9')
			v = *s - '0';
		else if ((*s | 32) >= 'a' && (*s | 32) <= 'f')
			v = (*s | 32) - 'a' + 10;
		else
			continue;
		if (nib & 1)
			out[nib / 2] |= (uint8_t)v;
		else
			out[nib / 2] = (uint8_t)(v << 4);
		nib++;
	}
	return nib == want * 2 ? 0 : -1;
}

static void load_rate(const char *text)
{
	double gbps = 10;
	unsigned lanes = 4;
	const char *p;

	if (text && *text) {
		gbps = atof(text);
		p = strchr(text, '(');
		if (p)
			lanes = (unsigned)atoi(p + 1);
	}
	switch (lanes) {
	case 1: port.width = 1; break;
	case 8: port.width = 4; break;
	case 12: port.width = 8; break;
	default: port.width = 2; lanes = 4; break;
	}
	gbps /= lanes;
	if (gbps < 3)
		port.speed = 1;  /* SDR */
	else if (gbps < 6)
		port.speed = 2;  /* DDR */
	else if (gbps < 11)
		port.speed = 4;  /* QDR */
	else if (gbps < 20)
		port.speed = 16; /* FDR */
	else
		port.speed = 32; /* EDR */
}

static uint8_t mtu_code(long bytes)
{
	switch (bytes) {
	case 256: return IBV_MTU_256;
	case 512: return IBV_MTU_512;
	case 1024: return IBV_MTU_1024;
	case 4096: return IBV_MTU_4096;
	default: return IBV_MTU_2048;
	}
}

static void load_port(void)
{
	const char *e;
	char s[256];
	uint8_t raw[16];
	int i;

	debug = (int)env_num("FAKEVERBS_DEBUG", 0);
	e = getenv("FAKEVERBS_DEV");
	snprintf(port.dev, sizeof port.dev, "%s", e && *e ? e : "ibsim0");
	port.port_num = (uint8_t)env_num("FAKEVERBS_PORT", 1);

	if (sysfs_str(s, sizeof s, "node_guid") > 0 && !hex_bytes(s, raw, 8)) {
		uint64_t be;

		memcpy(&be, raw, 8);
		port.node_guid = be64toh(be);
		port_ok = 1;
	}
	e = getenv("FAKEVERBS_GUID");
	if (e && *e) {
		port.node_guid = strtoull(e, NULL, 0);
		port_ok = 1;
	}
	if (!port_ok)
		return;

	if (sysfs_str(s, sizeof s, "ports/%u/gids/0", port.port_num) > 0 &&
	    !hex_bytes(s, raw, 16)) {
		memcpy(port.gid.raw, raw, 16);
	} else {
		port.gid.global.subnet_prefix = htobe64(0xfe80000000000000ull);
		port.gid.global.interface_id = htobe64(port.node_guid + port.port_num);
	}
	port.lid = (uint16_t)env_num("FAKEVERBS_LID", sysfs_num(0, "lid"));
	port.sm_lid = (uint16_t)env_num("FAKEVERBS_SMLID", sysfs_num(0, "sm_lid"));
	port.sm_sl = (uint8_t)sysfs_num(0, "sm_sl");
	port.lmc = (uint8_t)sysfs_num(0, "lid_mask_count");
	port.state = (uint8_t)env_num("FAKEVERBS_STATE", sysfs_num(IBV_PORT_ACTIVE, "state"));
	port.mtu = mtu_code(env_num("FAKEVERBS_MTU", 2048));
	port.subnet_timeout = (uint8_t)env_num("FAKEVERBS_SUBNET_TIMEOUT", 18);
	e = getenv("FAKEVERBS_RATE");
	if (e && *e)
		load_rate(e);
	else
		load_rate(sysfs_str(s, sizeof s, "ports/%u/rate", port.port_num) > 0 ? s : NULL);

	e = getenv("FAKEVERBS_PKEYS");
	if (e && *e) {
		while (*e && port.pkey_cnt < MAX_PKEYS) {
			char *end;

			port.pkeys[port.pkey_cnt++] = (uint16_t)strtoul(e, &end, 0);
			e = *end ? end + 1 : end;
		}
	} else {
		for (i = 0; i < MAX_PKEYS; i++) {
			if (sysfs_str(s, sizeof s, "ports/%u/pkeys/%d", port.port_num, i) <= 0)
				break;
			port.pkeys[port.pkey_cnt++] = (uint16_t)strtoul(s, NULL, 0);
		}
	}
	if (!port.pkey_cnt)
		port.pkeys[port.pkey_cnt++] = 0xffff;
	note("%s guid %016llx lid %u smlid %u state %u pkeys %d\n", port.dev,
	     (unsigned long long)port.node_guid, port.lid, port.sm_lid, port.state, port.pkey_cnt);
}

void load_port_once(void)
{
	pthread_once(&port_once, load_port);
}
