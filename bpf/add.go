// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build !race && (amd64 || arm64)

package bpf

// addAlone adds to a word that nobody else writes. Readers load it atomically; an
// aligned 64-bit store is one access on these machines, so that they see the old
// value or the new one, and a counter with one writer needs no locked instruction:
// 1 ns in place of 7, six times for each hit.
func addAlone(p *uint64, n uint64) { *p += n }
