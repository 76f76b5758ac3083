// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package preload answers from files: the hosts file (lines "address gid") and
// OpenSM's full path record dump (opensm_full_v1), both in the form that ibacm
// reads.
//
// [ReadHosts] and [ReadDump] are pure parsers over a reader. A row that is not
// right is refused alone, with its line number, and never changes another row.
// A dump has a block of paths for every port of the fabric; only the blocks of
// the wanted ports are kept, so a file of many gigabytes costs its reading and
// nothing else.
//
// [Source] holds what was read as an immutable snapshot: an address source for
// the engine's address step, and a table of complete routes by GID and by LID.
// Records are made when they are asked for, from the endpoint that asks, so a
// change of partition or subnet time-out needs no reading.
//
// A dump gives base LIDs only. A DLID belongs to the port with the next lower
// base LID if that base is aligned for a range that reaches it (IBTA vol. 1,
// 4.1.3: the low LMC bits of a base LID are zero, LMC is at most 7).
//
// Source is safe for concurrent use; the tables do not change once read.
package preload
