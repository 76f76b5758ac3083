// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"slices"
)

// framingProbes vary length, version, opcode and the cut of a right request.
func framingProbes(p *prober) []probe {
	good := p.good
	return []probe{
		{"good request", false, send(good)},
		{"good request, opcode with high bits (0x11)", false, send(edit(good, func(b []byte) { b[1] = 0x11 }))},
		{"good request with ACK bit (0x81), host-order length", false, send(edit(good, func(b []byte) { b[1] = 0x81 }))},
		{"good request with ACK bit (0x81), big-endian length", false, send(edit(good, func(b []byte) {
			b[1] = 0x81
			binary.BigEndian.PutUint16(b[6:], uint16(len(b)))
		}))},
		{"1 byte only", false, send(good[:1])},
		{"header in two pieces", false, send(good[:8], good[8:])},
		{"header, then the rest", false, send(good[:16], good[16:])},
		{"two requests in one write", false, send(slices.Concat(good, good))},
		{"length field too large", false, send(edit(good, func(b []byte) { native.PutUint16(b[6:], uint16(len(b)+1)) }))},
		{"length field too small", false, send(edit(good, func(b []byte) { native.PutUint16(b[6:], uint16(len(b)-1)) }))},
		{"1 trailing byte, length counts it", false, send(edit(append(slices.Clone(good), 0), func(b []byte) { native.PutUint16(b[6:], uint16(len(b))) }))},
		{"padded to 592 bytes", false, send(func() []byte { b := make([]byte, maxMsg); copy(b, good); native.PutUint16(b[6:], maxMsg); return b }())},
		{"593 bytes", false, send(func() []byte { b := make([]byte, maxMsg+1); copy(b, good); native.PutUint16(b[6:], maxMsg+1); return b }())},
		{"version 2", false, send(edit(good, func(b []byte) { b[0] = 2 }))},
		{"version 0", false, send(edit(good, func(b []byte) { b[0] = 0 }))},
		{"opcode 0", false, send(edit(good, func(b []byte) { b[1] = 0; binary.BigEndian.PutUint16(b[6:], uint16(len(b))) }))},
		{"opcode 4", false, send(edit(good, func(b []byte) { b[1] = 4; binary.BigEndian.PutUint16(b[6:], uint16(len(b))) }))},
		{"non-zero status in request", false, send(edit(good, func(b []byte) { b[2] = 99 }))},
	}
}

// entryProbes vary the entries of a resolve request.
func entryProbes(p *prober) []probe {
	src, dst := p.src, p.dst
	path := func(s string) endpoint { return mustEP(s, true) }
	flagged := func(e endpoint, f uint32) endpoint { e.flags = f; return e }
	typed := func(e endpoint, t uint16) endpoint { e.typ = t; return e }
	return []probe{
		{"resolve with no entries", false, send(msg(opResolv))},
		{"source only", false, send(msg(opResolv, src))},
		{"destination first, then source", false, send(msg(opResolv, dst, src))},
		{"two sources", false, send(msg(opResolv, src, src, dst))},
		{"two destinations", false, send(msg(opResolv, src, dst, dst))},
		{"one entry flagged both source and destination", false, send(msg(opResolv, flagged(src, flagSource|flagDest)))},
		{"destination type 0", false, send(msg(opResolv, src, typed(dst, 0)))},
		{"destination type 4 (GID)", false, send(msg(opResolv, src, typed(dst, 4)))},
		{"destination type 6 (reserved)", false, send(msg(opResolv, src, typed(dst, 6)))},
		{"source type 6 (reserved)", false, send(msg(opResolv, typed(src, 6), dst))},
		{"source not local", false, send(msg(opResolv, mustEP("ip:203.0.113.9", false), dst))},
		{"no source, IP destination", false, send(msg(opResolv, dst))},
		{"no source, name destination", false, send(msg(opResolv, mustEP("name:nosuch", true)))},
		{"path record, nothing set", false, send(msg(opResolv, endpoint{typ: typePath}))},
		{"path record, unknown SLID", false, send(msg(opResolv, func() endpoint { e := path("lid:5"); e.info[42], e.info[43] = 0x3f, 0xff; return e }()))},
		{"path record by DLID, no source", false, send(msg(opResolv, path("lid:5")))},
		{"path record by unreachable DLID", false, send(msg(opResolv, path("lid:4000")))},
		{"path record by unknown DGID in the subnet", false, send(msg(opResolv, path("gid:fe80::dead")))},
		{"path record by DGID of another subnet", false, send(msg(opResolv, path("gid:fec0::1")))},
		{"path record, query SA, two entries", false, send(msg(opResolv, flagged(path("lid:5"), flagQuerySA), path("lid:5")))},
		{"path record, query SA", false, send(msg(opResolv, flagged(path("lid:5"), flagQuerySA)))},
		{"cached only, never seen", false, send(msg(opResolv, src, flagged(mustEP("ip:203.0.113.77", true), flagDest|flagNoDelay)))},
	}
}

// queryProbes ask for counters and endpoints, which have lengths in network order.
func queryProbes() []probe {
	perf := func(index byte) []byte {
		b := make([]byte, hdrLen)
		putHeader(b, opPerf, 0, 7)
		binary.BigEndian.PutUint16(b[6:], hdrLen)
		b[4] = index
		return b
	}
	ep := func(index, port byte) []byte {
		b := make([]byte, hdrLen)
		putHeader(b, opEP, 0, 7)
		binary.BigEndian.PutUint16(b[6:], hdrLen)
		b[3], b[4] = index, port
		return b
	}
	return []probe{
		{"perf query, all", false, send(perf(0))},
		{"perf query, endpoint 1", false, send(perf(1))},
		{"perf query, endpoint 9", false, send(perf(9))},
		{"endpoint query 1, port 1", false, send(ep(1, 1))},
		{"endpoint query 1, any port", false, send(ep(1, 0))},
		{"endpoint query 0", false, send(ep(0, 1))},
		{"endpoint query 2", false, send(ep(2, 1))},
	}
}
