// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build race || !(amd64 || arm64)

package bpf

import "sync/atomic"

// addAlone adds to a word that nobody else writes: in the way that the race
// detector and every machine understand.
func addAlone(p *uint64, n uint64) { atomic.AddUint64(p, n) }
