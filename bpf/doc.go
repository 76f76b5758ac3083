// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package bpf has the memory that acmd counts in, and the programs of the
// kernel's side.
//
// Counters, latency histograms and the recorder of slow requests lie in BPF array
// maps that are mapped into the daemon: an increment is an atomic add, without a
// system call. The maps are pinned, so that they outlive a killed daemon, the next
// one goes on from there, and any tool reads them without asking anybody:
//
//	bpftool map dump pinned /sys/fs/bpf/acmd/v1/acm_ep
//
// [Open] finds the best place that there is: pinned maps, maps of this process
// alone, or ordinary memory; everything works alike in each. [Maps.Shard] and
// [Maps.Endpoint] are for those who count, [Maps.Read] for those who report, and
// [Load] reads the pins of another process, dead or alive.
//
// [LoadFast] loads the program that answers cached requests inside the client's
// send() (fastpath.bpf.c); resolver/fastpath decides what it knows.
//
// Layouts are in acm_maps.h. acm_kstat is written by programs of the fast path;
// what it has is part of every total.
package bpf
