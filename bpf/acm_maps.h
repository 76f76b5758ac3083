/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps that the daemon, its programs and the tools share. Words are in host byte order unless a comment says
 * otherwise; addresses are bytes as on the wire. Arrays are mmapped by the daemon, so elements are multiples of 8
 * bytes, those that several write of 64.
 *
 * Pinned and adopted by the next daemon: acm_meta, acm_stats, acm_ep, acm_lat, acm_flight, acm_kstat, acm_sa. A
 * change of a layout or of a meaning below in any of them raises ACM_SCHEMA. Never pinned, as they die with the
 * daemon: acm_src, acm_paths, acm_gen, acm_use, acm_conns, acm_want, acm_cli.
 *
 * An object has only the maps that it asks for before the #include: ACM_STAT_MAPS, ACM_FAST_MAPS, ACM_SA_MAPS;
 * those that acm_count.h needs come with it.
 */
#ifndef ACM_MAPS_H
#define ACM_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define ACM_MAGIC 0x3144434d4d4341ull /* "ACMMCD1" in little endian */
#define ACM_SCHEMA 1

enum {
	ACM_STAT_SHARDS = 128, /* acm_stats: the first half has one writer each, the rest is shared */
	ACM_STAT_WORDS = 128,  /* of a shard; numbered in counters.go */
	ACM_ENDPOINTS = 1024,  /* rows of acm_ep and acm_kstat; row 0 has what belongs to no endpoint */
	ACM_EP_SHARDS = 8,     /* of a row of acm_ep */
	ACM_LAT_SHARDS = 16,   /* acm_lat, acm_sa */
	ACM_LAT_CLASSES = 8,   /* of a shard */
	ACM_LAT_BUCKETS = 106, /* see acm_count.h */
	ACM_FLIGHTS = 1024,    /* acm_flight */
	ACM_SOURCES = 4096,    /* acm_src */
	ACM_PATHS = 65536,     /* acm_paths and acm_use, unless sized otherwise */
	ACM_GENS = 4096,       /* acm_gen: of scopes, */
	ACM_GEN_SOURCES = ACM_GENS, /* and behind them the host's generation of chosen sources */
	ACM_PORTS = 65536,     /* acm_conns, acm_want */
	ACM_CLIENTS = 16384,   /* acm_cli, unless sized otherwise */
	ACM_WANT_REFUSED = 1 << 16,
};

/* Classes of acm_lat. */
enum acm_lat_class {
	ACM_LAT_KERNEL,  /* answered in the client's send(); one in ACM_SAMPLE is timed */
	ACM_LAT_HIT,     /* answered by the daemon at once */
	ACM_LAT_MISS,    /* answered by the daemon after a lookup */
	ACM_LAT_ADDRESS, /* address step of a lookup */
	ACM_LAT_ROUTE,   /* route step of a lookup */
	ACM_LAT_SA,      /* SA request on the wire, from its last send to its answer */
};

/* Classes of acm_sa, from the kernel's tracepoints. */
enum acm_sa_class {
	ACM_SA_QUEUE,  /* write(2) to the send queue of the port */
	ACM_SA_SEND,   /* send queue to send completion */
	ACM_SA_FABRIC, /* send queue to the answer's arrival: fabric and SA, of requests sent once */
	ACM_SA_LAG,    /* arrival to read(2): the daemon's own lag */
	ACM_SA_COUNT = 7, /* not a class: buckets[] are the counters below */
};

/* Counters in bucket[] of acm_sa's class ACM_SA_COUNT. */
enum acm_sa_word {
	ACM_SA_SENT,       /* requests given to the adapter, */
	ACM_SA_AGAIN,      /* and further copies of one that nothing answered */
	ACM_SA_ANSWER,     /* answers that arrived; */
	ACM_SA_AMBIGUOUS,  /* those to a request of several copies are not timed */
	ACM_SA_SEND_ERROR, /* send completions with an error */
	ACM_SA_TIMEOUT,    /* requests that the kernel gave back unanswered */
	ACM_SA_WORDS,
};

#define ACM_SENT_BUSY (~0ull) /* the socket is being worked on */

#define ACM_SAMPLE 64 /* a power of two */

/* Words of acm_kstat: what became of a message on a client's socket. Each message counts once. */
enum acm_kstat_word {
	ACM_K_HIT,       /* answered */
	ACM_K_MISS,      /* no such path; from here on passed to the daemon */
	ACM_K_ODD,       /* not one whole request that the program answers */
	ACM_K_GUARD,     /* an earlier request or reply is under way */
	ACM_K_UNREAD,    /* a reply lies unread */
	ACM_K_EXPIRED,   /* path too old */
	ACM_K_STALE,     /* path of an earlier generation */
	ACM_K_NOSOURCE,  /* source address of no endpoint */
	ACM_K_FAIL,      /* a helper refused */
	ACM_K_STATE,     /* connection not established, or not one of the daemon's */
	ACM_K_DROP,      /* send() failed: no memory half-way */
	ACM_K_DROP_TID,  /* send() failed: tid 0 while an earlier request or reply is under way */
	ACM_K_SPLIT,     /* also counted: the message lay in two pages */
	ACM_K_OFF,       /* switched off; passed to the daemon */
	ACM_K_WORDS = 16,
};

struct acm_header {
	__u64 magic;
	__u32 schema;
	__u32 boots;      /* daemons that counted here */
	__u64 start_ns;   /* of the daemon, CLOCK_REALTIME */
	__u32 pid;        /* of the daemon; 0 after a clean exit */
	__u32 fast_on;    /* kill switch of the fast path: 0 passes every message */
	__u32 endpoints;  /* rows of acm_ep in use, row 0 included */
	__u32 kshards;    /* rows of acm_kstat for each endpoint, a power of two */
	__u64 pad1[3];
	__u64 flights;    /* slow requests recorded so far; on a cache line of its own */
	__u64 pad2[7];
	char run_dir[256]; /* whose daemon, NUL terminated */
};

struct acm_words {
	__u64 word[ACM_STAT_WORDS];
};

/* A row of acm_ep is taken once and never given back, so that totals stay. */
struct acm_endpoint {
	char device[64]; /* NUL terminated */
	__u64 guid;      /* node GUID, host order */
	__u32 pkey;      /* as in the port's table; identity without the membership bit */
	__u32 active;    /* on an active port now */
	__u64 port;
	__u64 pad[5];
	__u64 count[ACM_EP_SHARDS][8]; /* seven counters of the ACM protocol in their order, and a spare */
};

struct acm_hist {
	__u64 bucket[ACM_LAT_BUCKETS];
	__u64 pad[ACM_STAT_WORDS - ACM_LAT_BUCKETS - 1];
	__u64 sum; /* ns; the count is the sum of the buckets */
};

/*
 * A slow request. Its writer clears end, then writes what lies between, then seq, then end; a reader copies from front
 * to back and throws away what has seq != end.
 */
struct acm_slow {
	__u64 seq;  /* number of the record, from 1; 0: none */
	__u64 when; /* end of the request, ns, CLOCK_REALTIME */
	__u64 took; /* ns */
	__u32 ep;   /* row of acm_ep */
	__u8 lat;   /* enum acm_lat_class */
	__u8 status;
	__u8 kind;  /* of key: 1 name, 2 IPv4, 3 IPv6, 4 GID, 5 LID, 6 path record */
	__u8 len;   /* of key */
	__u8 key[64];
	__u64 pad[3];
	__u64 end;
};

struct acm_kwords {
	__u64 word[ACM_K_WORDS];
};

/* Key of acm_src, with ep 0, and of acm_paths. No holes: it is hashed as it is. */
struct acm_key {
	__u16 ep;     /* the engine's slot of the source; 0xffff: none named, and path requests */
	__u8 kind;    /* as in the message: 1 name, 2 IPv4, 3 IPv6, 0x10 path record */
	__u8 zero0;
	__u32 zero1;
	__u64 addr[8]; /* bytes of the address, names in lower case, zero to the end; or the path record as asked */
};

struct acm_path {
	__u64 expires; /* ns, CLOCK_MONOTONIC */
	__u64 gen;     /* acm_gen[gen_slot] when it was made; */
	__u64 version; /* acm_use[use_slot].version; */
	__u64 sources; /* acm_gen[ACM_GEN_SOURCES], of a question by address that names no source */
	__u32 gen_slot;
	__u32 use_slot;
	__u16 ep;      /* row of acm_ep that counts */
	__u16 len;     /* of the whole reply: 88 or 160 */
	__u32 pad;
	__u64 rec[18]; /* the reply behind its header */
};

/* Of one mirrored answer. It outlives the answer: the version never goes back. */
struct acm_use {
	__u64 seconds; /* CLOCK_MONOTONIC, of the last hit; 0: none */
	__u64 version; /* raised by the daemon to void the answer with one store */
};

/* What the daemon has done for the connection of a client port. Written by the loop that owns the connection. */
struct acm_conn {
	__u64 answered; /* bytes of requests taken out of TCP and answered; told before the replies are written */
	__u64 replied;  /* bytes of these replies */
	__u64 held;     /* 1 while the daemon has a connection of this port */
	__u64 sent;     /* bytes that the client had put into TCP when its socket was last looked for; ACM_SENT_BUSY */
};

#define ACM_MAP(name, t, entries, flags, k, v)		\
	struct {					\
		__uint(type, BPF_MAP_TYPE_##t);		\
		__uint(max_entries, entries);		\
		__uint(map_flags, flags);		\
		__type(key, k);				\
		__type(value, v);			\
	} name SEC(".maps")

#if defined(ACM_STAT_MAPS) || defined(ACM_COUNT_MAPS) || defined(ACM_FAST_MAPS)
ACM_MAP(acm_meta, ARRAY, 1, BPF_F_MMAPABLE, __u32, struct acm_header);
/* [endpoint * kshards + (cpu & (kshards - 1))], sized at load. Atomic adds: programs can be preempted. */
ACM_MAP(acm_kstat, ARRAY, ACM_ENDPOINTS, BPF_F_MMAPABLE, __u32, struct acm_kwords);
/* [shard * ACM_LAT_CLASSES + class]; programs, which have classes of their own, take the shard of their CPU */
ACM_MAP(acm_lat, ARRAY, ACM_LAT_SHARDS *ACM_LAT_CLASSES, BPF_F_MMAPABLE, __u32, struct acm_hist);
#endif

#ifdef ACM_STAT_MAPS
ACM_MAP(acm_stats, ARRAY, ACM_STAT_SHARDS, BPF_F_MMAPABLE, __u32, struct acm_words);
ACM_MAP(acm_ep, ARRAY, ACM_ENDPOINTS, BPF_F_MMAPABLE, __u32, struct acm_endpoint);
ACM_MAP(acm_flight, ARRAY, ACM_FLIGHTS, BPF_F_MMAPABLE, __u32, struct acm_slow);
#endif

#if defined(ACM_STAT_MAPS) || defined(ACM_SA_MAPS)
ACM_MAP(acm_sa, ARRAY, ACM_LAT_SHARDS *ACM_LAT_CLASSES, BPF_F_MMAPABLE, __u32, struct acm_hist);
#endif

#ifdef ACM_FAST_MAPS
ACM_MAP(acm_src, HASH, ACM_SOURCES, BPF_F_NO_PREALLOC, struct acm_key, __u32); /* -> the engine's slot */
ACM_MAP(acm_paths, HASH, ACM_PATHS, BPF_F_NO_PREALLOC, struct acm_key, struct acm_path);
ACM_MAP(acm_gen, ARRAY, ACM_GENS + 1, BPF_F_MMAPABLE, __u32, __u64);
ACM_MAP(acm_use, ARRAY, ACM_PATHS, BPF_F_MMAPABLE, __u32, struct acm_use); /* by use_slot */
ACM_MAP(acm_conns, ARRAY, ACM_PORTS, BPF_F_MMAPABLE, __u32, struct acm_conn); /* by client port, host order */
/* by client port: port of the server while iter_add is to add it, ACM_WANT_REFUSED, 0 done */
ACM_MAP(acm_want, ARRAY, ACM_PORTS, BPF_F_MMAPABLE, __u32, __u64);
ACM_MAP(acm_cli, SOCKHASH, ACM_CLIENTS, 0, __u64, __u64); /* by client port */
#endif

#endif
