//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A cached RESOLVE is answered inside the asking program's own send().
 *
 * msg_verdict runs on a client's TCP socket, under the socket's lock. It turns the request into the reply where it
 * lies and queues it on the same socket's receive side; TCP and the daemon never see it. Whatever it does not know,
 * or is not sure of, goes to the daemon as if it were not there.
 *
 * lookup_add, iter_add and sockops_conn put sockets onto acm_cli: the first of the three that the kernel takes.
 */
#define ACM_FAST_MAPS
#include "acm_maps.h"
#include "acm_kernel.h"
#include "acm_count.h"

char _license[] SEC("license") = "Dual BSD/GPL";

enum { HEADER = 16, RECORD = 72, ONE = HEADER + RECORD, TWO = HEADER + 2 * RECORD, LONGEST = HEADER + 8 * RECORD };
enum { NAME = 1, IPV4 = 2, IPV6 = 3, PATH = 0x10 }; /* types of records */
enum { SOURCE = 1, DEST = 2, NODELAY = 0x40000000 }; /* flags of records */
enum { RESOLVE = 1 << 8 | 1 }; /* version and opcode as one word, little endian */
enum { NO_SOURCE = 0xffff, LOOPBACK = 0x7f000001, INET = 2, ESTABLISHED = 1 };

/* librdmacm/acm.h; numbers are in host byte order, addresses are bytes */
struct header {
	__u16 what;
	__u8 status, data0;
	__u16 data12, length;
	__u64 tid;
};

struct record {
	__u32 flags;
	__u16 type, reserved;
	__u64 info[8];
};

/* Frozen before load: the verifier removes what a kernel lacks before it looks at it. */
volatile const __u16 server_port;
volatile const __u64 netns;      /* SO_NETNS_COOKIE of the daemon */
volatile const __u32 coarse = 1; /* bpf_ktime_get_coarse_ns: 5.11 */
volatile const __u32 psock = 0;  /* look for unread replies in the psock: kernels that do not charge them to the socket */

#define SOCK(tp) ((tp)->inet_conn.icsk_inet.sk)
#define ONCE(x) (*(volatile typeof(x) *)&(x))
#define WINDOW(msg) (data = (void *)(long)(msg)->data, end = (void *)(long)(msg)->data_end)

/* Eight bytes to ASCII lower case at once; bytes from 0x80 on stay. */
static __always_inline __u64 lower(__u64 w)
{
	const __u64 one = 0x0101010101010101ull;
	__u64 low = w & 0x7f * one;
	__u64 upper = (low + (0x80 - 'A') * one) ^ (low + (0x7f - 'Z') * one);

	return w | (upper & ~w & 0x80 * one) >> 2;
}

/* The address of a record as it is in keys; the key's addr is zero. False: a type that is not answered here. */
static __always_inline int take_address(struct acm_key *k, const struct record *r)
{
	k->kind = r->type;
	switch (r->type) {
	case IPV4:
		k->addr[0] = *(const __u32 *)r->info;
		return 1;
	case IPV6:
		k->addr[0] = r->info[0];
		k->addr[1] = r->info[1];
		return 1;
	case NAME:
#pragma unroll
		for (int i = 0; i < 8; i++)
			k->addr[i] = lower(r->info[i]);
		return 1;
	case PATH:
#pragma unroll
		for (int i = 0; i < 8; i++)
			k->addr[i] = r->info[i];
		return 1;
	}
	return 0;
}

static __always_inline void put_header(struct header *h, __u16 length, __u64 tid)
{
	h->what = RESOLVE; /* no ACK bit: that of a success */
	h->status = h->data0 = 0;
	h->data12 = 0;
	h->length = length;
	h->tid = tid;
}

static __always_inline void put_record(void *to, const __u64 *words)
{
#pragma unroll
	for (int i = 0; i < RECORD / 8; i++)
		((__u64 *)to)[i] = words[i];
}

/* A reply that nobody has read yet lies on the socket. */
static __always_inline int unread(struct tcp_sock *tp)
{
	if (psock) {
		struct sk_psock *ps = (void *)((unsigned long)SOCK(tp).sk_user_data & ~7ul);
		struct list_head *first = BPF_CORE_READ(ps, ingress_msg.next);

		return first != (void *)ps + bpf_core_field_offset(struct sk_psock, ingress_msg) ||
		       tp->rcv_nxt != tp->copied_seq;
	}
	return SOCK(tp).sk_backlog.rmem_alloc.counter != 0;
}

/* Bytes that a client has put into TCP; bytes_acked counts the SYN. */
static __always_inline __u64 sent_by(struct tcp_sock *tp)
{
	return tp->bytes_acked - 1 + (__u32)(tp->write_seq - tp->snd_una);
}

/* Somebody works on the socket: its owner, in a system call, or the kernel, on what arrives. */
static __always_inline int worked_on(struct tcp_sock *tp)
{
	return SOCK(tp).sk_lock.owned || (bpf_core_field_exists(SOCK(tp).sk_lock.slock.rlock) &&
					  SOCK(tp).sk_lock.slock.rlock.raw_lock.val.counter);
}

/*
 * sent_by for who does not hold the socket's lock. An acknowledgement that comes in meanwhile is added to bytes_acked
 * before snd_una moves (tcp_snd_una_update), and would be counted twice.
 */
static __always_inline __u64 sent_now(struct tcp_sock *tp)
{
	__u64 acked, sent;

	if (worked_on(tp))
		return ACM_SENT_BUSY;
	acked = tp->bytes_acked;
	barrier();
	sent = sent_by(tp);
	barrier();
	return worked_on(tp) || tp->bytes_acked != acked ? ACM_SENT_BUSY : sent;
}

/*
 * The daemon has answered every byte that the client ever put into TCP, and the client has read every byte of it.
 * Answers from here never enter TCP, so this holds for split and for pipelined requests as well.
 */
static __always_inline int quiet(struct tcp_sock *tp, struct acm_conn *c)
{
	__u64 sent = sent_by(tp);
	__u64 read = tp->bytes_received - (__u32)(tp->rcv_nxt - tp->copied_seq);

	return ONCE(c->answered) == sent && ONCE(c->replied) == read;
}

SEC("sk_msg") int msg_verdict(struct sk_msg_md *msg)
{
	__u32 zero = 0, len = msg->size, port = msg->local_port, ep = 0, why = ACM_K_ODD;
	__u64 begin = 0, now, tid, slot = port;
	struct acm_key key = {};
	struct bpf_sock *sk = msg->sk;
	struct acm_header *meta = bpf_map_lookup_elem(&acm_meta, &zero);
	void *data, *end;

	if (!meta)
		return SK_PASS;
	if (!(bpf_get_prandom_u32() & (ACM_SAMPLE - 1)))
		begin = bpf_ktime_get_ns();

	/* 1. One whole request in one piece. */
	if (len < HEADER || len > LONGEST)
		goto pass;
	WINDOW(msg);
	if (data + HEADER > end || (len == ONE && data + ONE > end) || (len == TWO && data + TWO > end)) {
		acm_count(0, ACM_K_SPLIT);
		why = ACM_K_FAIL;
		if (bpf_msg_pull_data(msg, 0, len, 0))
			goto pass;
		WINDOW(msg);
		if (data + HEADER > end)
			goto pass;
		why = ACM_K_ODD;
	}
	struct header *h = data;
	if (h->what != RESOLVE || h->length != len)
		goto pass;
	tid = h->tid;

	/* 2. Nothing of this client is under way. */
	struct acm_conn *conn = bpf_map_lookup_elem(&acm_conns, &port);
	struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;
	why = ACM_K_STATE;
	if (!conn || !tp || SOCK(tp).__sk_common.skc_state != ESTABLISHED)
		goto pass;
	why = unread(tp) ? ACM_K_UNREAD : quiet(tp, conn) ? ACM_K_HIT : ACM_K_GUARD;
	if (why != ACM_K_HIT) {
		/*
		 * librdmacm always sends tid 0 and gives up on a reply when a signal interrupts it, which happens to
		 * sockets on a sockmap even under SA_RESTART. It would take the reply that it gave up on for the
		 * answer to this request. An error makes it resolve in another way. The kernel does not ask again
		 * after a drop (psock->eval in net/ipv4/tcp_bpf.c): this socket gets the error from now on.
		 */
		if (!tid) {
			acm_count(0, ACM_K_DROP_TID);
			return SK_DROP;
		}
		goto pass;
	}

	/* 3. A question that is answered here. */
	why = ACM_K_OFF;
	if (!ONCE(meta->fast_on))
		goto pass;
	why = ACM_K_ODD;
	struct record *r = data + HEADER;
	key.ep = NO_SOURCE;
	if (len == TWO) {
		if (data + TWO > end || r->flags != SOURCE || r->type == PATH || !take_address(&key, r))
			goto pass;
		key.ep = 0;
		__u32 *source = bpf_map_lookup_elem(&acm_src, &key);
		why = ACM_K_NOSOURCE;
		if (!source)
			goto pass;
		why = ACM_K_ODD;
		__builtin_memset(&key, 0, sizeof(key));
		key.ep = *source;
		r = data + ONE;
		if ((r->flags & ~NODELAY) != DEST || r->type == PATH || !take_address(&key, r))
			goto pass;
	} else {
		if (len != ONE || data + ONE > end)
			goto pass;
		if ((r->flags & ~NODELAY) != (r->type == PATH ? 0 : DEST) || !take_address(&key, r))
			goto pass;
	}

	/* 4. A path that is still true. */
	struct acm_path *p = bpf_map_lookup_elem(&acm_paths, &key);
	why = ACM_K_MISS;
	if (!p)
		goto pass;
	ep = p->ep;
	now = coarse ? bpf_ktime_get_coarse_ns() : bpf_ktime_get_ns();
	why = ACM_K_EXPIRED;
	if (now >= p->expires)
		goto pass;
	__u32 gen_slot = p->gen_slot, use_slot = p->use_slot, reply = p->len;
	__u64 *gen = bpf_map_lookup_elem(&acm_gen, &gen_slot);
	struct acm_use *use = bpf_map_lookup_elem(&acm_use, &use_slot);
	why = ACM_K_STALE;
	if (!gen || ONCE(*gen) != p->gen || !use || ONCE(use->version) != p->version)
		goto pass;
	if (key.ep == NO_SOURCE && key.kind != PATH) { /* its source was chosen */
		gen_slot = ACM_GEN_SOURCES;
		gen = bpf_map_lookup_elem(&acm_gen, &gen_slot);
		if (!gen || ONCE(*gen) != p->sources)
			goto pass;
	}

	/*
	 * 5. The reply. What can fail comes before the redirect, which cannot be taken back, and that before the first
	 * write, so that a request that passes is intact. A longer reply is written through two windows: making the
	 * grown message one piece again would copy it once more.
	 */
	why = ACM_K_FAIL;
	if (reply == TWO && len == ONE) {
		if (bpf_msg_push_data(msg, ONE, RECORD, 0))
			goto pass;
		if (bpf_msg_pull_data(msg, 0, ONE, 0) ||
		    bpf_msg_redirect_hash(msg, &acm_cli, &slot, BPF_F_INGRESS) != SK_PASS) {
			if (bpf_msg_pop_data(msg, ONE, RECORD, 0))
				goto drop;
			goto pass;
		}
		WINDOW(msg);
		if (data + ONE > end)
			goto drop;
		put_header(data, TWO, tid);
		put_record(data + HEADER, p->rec);
		if (bpf_msg_pull_data(msg, ONE, TWO, 0))
			goto drop;
		WINDOW(msg);
		if (data + RECORD > end)
			goto drop;
		put_record(data, p->rec + RECORD / 8);
	} else if (reply == ONE) {
		if (bpf_msg_redirect_hash(msg, &acm_cli, &slot, BPF_F_INGRESS) != SK_PASS)
			goto pass;
		put_header(data, ONE, tid);
		put_record(data + HEADER, p->rec);
		if (len == TWO && bpf_msg_pop_data(msg, ONE, RECORD, 0))
			goto drop;
	} else {
		goto pass;
	}
	__u64 seconds = now / 1000000000;
	if (use->seconds != seconds)
		use->seconds = seconds;
	acm_count(ep, ACM_K_HIT);
	if (begin)
		acm_lat_add(ACM_LAT_KERNEL, bpf_ktime_get_ns() - begin);
	return SK_PASS;
pass:
	acm_count(ep, why);
	return SK_PASS;
drop:
	acm_count(ep, ACM_K_DROP);
	return SK_DROP;
}

/*
 * lookup_add is run by the daemon through BPF_PROG_TEST_RUN. Its input is 14 bytes of nothing, where an Ethernet header
 * would be, then the client's port and the server's, 16 bits each in host byte order. It finds the client's socket in
 * the daemon's network namespace. A socket that has a program is refused, be it ours or somebody else's.
 *
 * It also says what the client had sent until then: what comes later has passed msg_verdict. A client in the middle of a
 * system call may be sending with the functions that its socket had before.
 */
enum { ADDED = 0, NO_SOCKET, NOT_OURS, REFUSED, BAD_INPUT };

SEC("tc") int lookup_add(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct bpf_sock_tuple t = {};

	if (data + 18 > end)
		return BAD_INPUT;
	__u16 client = *(__u16 *)(data + 14), server = *(__u16 *)(data + 16);
	__u64 slot = client;
	t.ipv4.saddr = t.ipv4.daddr = bpf_htonl(LOOPBACK);
	t.ipv4.sport = bpf_htons(server); /* as the client's socket sees a packet: from the server, to itself */
	t.ipv4.dport = bpf_htons(client);
	struct bpf_sock *sk = bpf_sk_lookup_tcp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return NO_SOCKET;
	int ret = NOT_OURS;
	__u32 port = client;
	struct acm_conn *conn = bpf_map_lookup_elem(&acm_conns, &port);
	if (conn && sk->state == ESTABLISHED && sk->src_port == client) {
		ret = bpf_map_update_elem(&acm_cli, &slot, sk, BPF_NOEXIST) ? REFUSED : ADDED;
		struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
		conn->sent = tp ? sent_now(tp) : ACM_SENT_BUSY;
	}
	bpf_sk_release(sk);
	return ret;
}

/*
 * iter_add does the same on kernels (7.3) that let only iterators change a sockmap: one walk over the TCP sockets of the
 * namespace adds every client whose acm_want has the port of the server, and clears it.
 */
SEC("iter/tcp") int iter_add(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;

	if (!sk || sk->skc_family != INET || sk->skc_state != ESTABLISHED || sk->skc_daddr != bpf_htonl(LOOPBACK) ||
	    sk->skc_rcv_saddr != bpf_htonl(LOOPBACK))
		return 0;
	__u32 port = sk->skc_num;
	__u64 slot = port, *want = bpf_map_lookup_elem(&acm_want, &port);
	struct acm_conn *conn = bpf_map_lookup_elem(&acm_conns, &port);
	if (!conn || !want || !*want || *want != bpf_ntohs(sk->skc_dport))
		return 0;
	*want = bpf_map_update_elem(&acm_cli, &slot, sk, BPF_NOEXIST) ? ACM_WANT_REFUSED : 0;
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk); /* the walk holds the socket's lock (5.15) */
	conn->sent = tp ? sent_by(tp) : ACM_SENT_BUSY;
	return 0;
}

/*
 * sockops_conn adds sockets as they connect, host-wide, so that the first request is answered here already. A port whose
 * last connection the daemon still holds is left to lookup_add: what the daemon owes that one must not count for this one.
 */
SEC("sockops") int sockops_conn(struct bpf_sock_ops *ops)
{
	__u32 zero = 0, port = ops->local_port;
	__u64 slot = port;

	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ops->family != INET ||
	    ops->remote_ip4 != bpf_htonl(LOOPBACK) || ops->local_ip4 != bpf_htonl(LOOPBACK) ||
	    bpf_ntohl(ops->remote_port) != server_port || bpf_get_netns_cookie(ops) != netns)
		return 1;
	struct acm_header *meta = bpf_map_lookup_elem(&acm_meta, &zero);
	struct acm_conn *conn = bpf_map_lookup_elem(&acm_conns, &port);
	if (!meta || !ONCE(meta->fast_on) || !conn || ONCE(conn->held))
		return 1;
	conn->answered = conn->replied = 0;
	bpf_sock_hash_update(ops, &acm_cli, &slot, BPF_NOEXIST);
	return 1;
}
