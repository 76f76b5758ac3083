//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Where the time of an SA request goes, seen from the kernel's tracepoints of ib_mad and ib_umad:
 *
 *	write(2) -> ib_mad_ib_send_mad             ACM_SA_QUEUE
 *	         -> ib_mad_send_done_handler       ACM_SA_SEND
 *	         -> ib_mad_recv_done_handler       ACM_SA_FABRIC
 *	         -> ib_umad_read_recv              ACM_SA_LAG
 *
 * The daemon puts the TID of a request and the time into acm_asked before it writes. That tells its requests from
 * those of other programs, and is why nothing hangs on ib_umad_write: with a program there, a write(2) to a device
 * that was removed takes the kernel down (6.1, 6.12).
 */
#define ACM_SA_MAPS
#include "acm_count.h"
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "Dual BSD/GPL";

enum {
	ACM_ASKED = 4096,   /* a power of two */
	CLASS_SA = 3,       /* SubnAdm */
	METHOD_RESPONSE = 0x80,
	TIMED_OUT = 110,    /* ETIMEDOUT, in the status of a packet that comes back unanswered */
};

/* One request that is on its way. The daemon writes tid and asked, the programs the rest. */
struct acm_ask {
	__u64 tid;     /* lower half; 0: none */
	__u64 asked;   /* ns, CLOCK_MONOTONIC, as all of them: write(2) is next; 0: already on its way */
	__u64 sent;    /* the last copy was given to the adapter */
	__u64 copies;  /* since the last answer */
	__u64 arrived; /* an answer is there and was not read */
	__u64 pad[3];
};

ACM_MAP(acm_asked, ARRAY, ACM_ASKED, BPF_F_MMAPABLE, __u32, struct acm_ask);

/*
 * The records of the tracepoints (include/trace/events/ib_mad.h, ib_umad.h), as far as they are read. Go compares
 * them with the running kernel's format files before it attaches anything. Wire fields are big endian.
 */
struct ib_mad_ib_send_mad { /* ib_mad_send_done_resend has the same */
	__u64 common;
	__u8 base_version, mgmt_class, class_version, port_num;
	__u32 qp_num;
	__u8 method, sl;
	__u16 attr_id;
	__u32 attr_mod;
	__u64 wrtid, tid;
};

struct ib_mad_send_done_handler {
	__u64 common;
	__u8 port_num, base_version, mgmt_class, class_version;
	__u32 qp_num;
	__u64 wrtid;
	__u16 status, wc_status;
	__u32 length;
	void *agent_priv;
	unsigned long timeout;
	__u32 dev_index;
	int retries_left, max_retries, retry;
	__u8 method;
};

struct ib_mad_recv_done_handler {
	__u64 common;
	__u8 base_version, mgmt_class, class_version, port_num;
	__u32 qp_num;
	__u16 status, class_specific;
	__u32 length;
	__u64 tid;
	__u8 method, sl;
};

struct ib_umad_read_recv { /* ib_umad_read_send has the same */
	__u64 common;
	__u8 port_num, sl, path_bits, grh_present;
	__u32 id, status, timeout_ms, retires, length, qpn, qkey;
	__u8 gid_index, hop_limit;
	__u16 lid, attr_id, pkey_index;
	__u8 base_version, mgmt_class, class_version, method;
	__u32 flow_label;
	__u16 mad_status, class_specific;
	__u32 attr_mod;
	__u64 tid;
};

/*
 * ask_of finds the daemon's request of a TID, for a packet of the SA class that is a response or is none. On the
 * node of the SM the same TID passes in the other direction too.
 */
static __always_inline struct acm_ask *ask_of(__u64 wire, __u8 class, __u8 method, __u8 response)
{
	__u32 tid = bpf_be64_to_cpu(wire), slot = tid & (ACM_ASKED - 1);
	struct acm_ask *a;

	if (class != CLASS_SA || (method & METHOD_RESPONSE) != response || !tid)
		return 0;
	a = bpf_map_lookup_elem(&acm_asked, &slot);
	return a && a->tid == tid ? a : 0;
}

static __always_inline struct acm_hist *sa_row(__u32 class)
{
	__u32 k = (bpf_get_smp_processor_id() & (ACM_LAT_SHARDS - 1)) * ACM_LAT_CLASSES + class;

	return bpf_map_lookup_elem(&acm_sa, &k);
}

static __always_inline void sa_time(enum acm_sa_class class, __u64 ns)
{
	struct acm_hist *h = sa_row(class);
	__u32 b = acm_bucket(ns);

	if (!h || b >= ACM_LAT_BUCKETS)
		return;
	__sync_fetch_and_add(&h->bucket[b], 1);
	__sync_fetch_and_add(&h->sum, ns);
}

static __always_inline void sa_count(enum acm_sa_word word)
{
	struct acm_hist *h = sa_row(ACM_SA_COUNT);

	if (h)
		__sync_fetch_and_add(&h->bucket[word], 1);
}

static __always_inline void posted(struct ib_mad_ib_send_mad *r)
{
	struct acm_ask *a = ask_of(r->tid, r->mgmt_class, r->method, 0);
	__u64 now;

	if (!a)
		return;
	now = bpf_ktime_get_ns();
	if (a->asked) {
		/* The daemon's clock is a few ns off. */
		sa_time(ACM_SA_QUEUE, now > a->asked ? now - a->asked : 0);
		a->asked = 0;
	}
	a->sent = now;
	sa_count(a->copies++ ? ACM_SA_AGAIN : ACM_SA_SENT);
}

SEC("tracepoint/ib_mad/ib_mad_ib_send_mad") int sa_send(struct ib_mad_ib_send_mad *r)
{
	posted(r);
	return 0;
}

/* The send queue was full; the packet waited in the overflow list until now. */
SEC("tracepoint/ib_mad/ib_mad_send_done_resend") int sa_resend(struct ib_mad_ib_send_mad *r)
{
	posted(r);
	return 0;
}

SEC("tracepoint/ib_mad/ib_mad_send_done_handler") int sa_sent(struct ib_mad_send_done_handler *r)
{
	struct acm_ask *a = ask_of(r->wrtid, r->mgmt_class, r->method, 0);

	if (!a || !a->sent)
		return 0;
	if (r->wc_status)
		sa_count(ACM_SA_SEND_ERROR);
	else
		sa_time(ACM_SA_SEND, bpf_ktime_get_ns() - a->sent);
	return 0;
}

SEC("tracepoint/ib_mad/ib_mad_recv_done_handler") int sa_answer(struct ib_mad_recv_done_handler *r)
{
	struct acm_ask *a = ask_of(r->tid, r->mgmt_class, r->method, METHOD_RESPONSE);
	__u64 now;

	if (!a || !a->sent)
		return 0;
	now = bpf_ktime_get_ns();
	a->arrived = now;
	sa_count(ACM_SA_ANSWER);
	/* After several copies nobody knows which of them this answers. */
	if (a->copies == 1)
		sa_time(ACM_SA_FABRIC, now - a->sent);
	else
		sa_count(ACM_SA_AMBIGUOUS);
	a->copies = 0;
	return 0;
}

SEC("tracepoint/ib_umad/ib_umad_read_recv") int sa_read(struct ib_umad_read_recv *r)
{
	struct acm_ask *a = ask_of(r->tid, r->mgmt_class, r->method, METHOD_RESPONSE);

	if (!a || !a->arrived)
		return 0;
	sa_time(ACM_SA_LAG, bpf_ktime_get_ns() - a->arrived);
	a->arrived = 0;
	return 0;
}

/* A request that the daemon gets back, as its time is over. */
SEC("tracepoint/ib_umad/ib_umad_read_send") int sa_returned(struct ib_umad_read_recv *r)
{
	if (r->status == TIMED_OUT && ask_of(r->tid, r->mgmt_class, r->method, 0))
		sa_count(ACM_SA_TIMEOUT);
	return 0;
}
