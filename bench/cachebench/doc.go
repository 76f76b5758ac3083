// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Command cachebench compares the path cache with other concurrent maps: the
// same GID keys, the same order of access, every hit's record copied out and
// checked.
//
//	go run ./cachebench [-sizes 1000,40000,1000000] [-goroutines 1,2] [-writes 0,1] [-chained 0,1]
//
// Tables are filled first. Then each round measures each table for a short
// while, one after the other, so that a disturbance of the machine meets all of
// them. A figure is the median over the rounds of the processor time of one
// operation, from each thread's own clock: time that other processes took is
// not in it, cache lines and memory bandwidth that they took are. With
// writes, that percentage of operations stores a new record under an existing
// key, and the figure covers reads and writes together.
//
// Lookups are measured twice: overlapping, where the processor works on several
// at a time, and chained, where each needs the result of the one before. The
// second is the latency of a lookup, which is what a daemon sees.
//
// The tables are used as is natural for them: the flat one copies records
// in, the others hold pointers to records that do not change.
//
// With -rss it instead fills a cache with 40,000 entries and prints how much
// resident memory each takes.
package main
