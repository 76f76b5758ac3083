/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fields of kernel structures that programs read. CO-RE finds them by name in the running kernel (include/net/
 * sock.h, include/linux/tcp.h, include/linux/skmsg.h), so a whole vmlinux.h is not needed.
 */
#ifndef ACM_KERNEL_H
#define ACM_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
typedef struct {
	int counter;
} atomic_t;

struct list_head {
	struct list_head *next, *prev;
};

struct sk_psock {
	struct list_head ingress_msg;
};

struct sock_common {
	volatile unsigned char skc_state;
	unsigned short skc_family;
	__u16 skc_num; /* local port, host order */
	__be16 skc_dport;
	__be32 skc_daddr, skc_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	struct {
		struct {
			struct { /* not under PREEMPT_RT */
				struct {
					atomic_t val;
				} raw_lock;
			} rlock;
		} slock;
		int owned;
	} sk_lock;
	struct {
		atomic_t rmem_alloc;
	} sk_backlog;
	void *sk_user_data;
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u64 bytes_received, bytes_acked;
	__u32 rcv_nxt, copied_seq, write_seq, snd_una;
};

struct bpf_iter_meta;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};
#pragma clang attribute pop

#endif
