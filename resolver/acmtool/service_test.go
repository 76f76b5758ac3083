// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/acmsock"
)

// standIn is a service that gives the answers which ibacm gave in the laboratory
// from which the golden outputs come: node-a has LID 3 and 10.77.0.1, node-b LID
// 5 and 10.77.0.2. It builds its replies byte by byte, from the description of
// the protocol and not with the codec under test elsewhere.
//
//	10.77.0.2, node-b, node1, node3   path to LID 5 from the group's parameters
//	10.77.0.3                         the same, with a source of its choice
//	LID 5, 6, 0xBFFF, fe80::10:3      path from the SA
//	LID 7                             the SA has it with SL 3
//	LID 8                             the SA does not have it
//	LID 9                             closes the connection
//	anything else                     times out; with NODELAY there is no data
type standIn struct {
	requests atomic.Int64
	noPerf   uint8 // endpoint whose counters are refused
}

type standInEndpoint struct {
	port  byte
	pkey  uint16
	addrs []string
}

var standInEndpoints = []standInEndpoint{
	{1, 0xffff, []string{"node-a", "10.77.0.1"}},
	{2, 0x8001, []string{"node-a-2"}},
}

// serve accepts connections until the test ends.
func (s *standIn) serve(t testing.TB, ln net.Listener) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.client(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
}

func (s *standIn) client(c net.Conn) {
	defer c.Close()
	for {
		b := make([]byte, 592)
		if _, err := io.ReadFull(c, b[:16]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(b[6:]))
		if b[1] == 1 {
			n = int(binary.NativeEndian.Uint16(b[6:]))
		}
		if _, err := io.ReadFull(c, b[16:n]); err != nil {
			return
		}
		s.requests.Add(1)
		reply, err := s.answer(b[:n])
		if err != nil {
			return
		}
		if _, err := c.Write(reply); err != nil {
			return
		}
	}
}

var errHangUp = errors.New("hang up")

func (s *standIn) answer(b []byte) ([]byte, error) {
	h := append([]byte{}, b[:16]...)
	h[1] |= 0x80
	switch b[1] {
	case 1:
		var q resolver.Query
		if st := acmsock.ParseRequest(b, &q); st != 0 {
			return finish(h, byte(st), nil), nil
		}
		return s.resolve(h, &q)
	case 2:
		n := b[4]
		if len(b) >= 88 && binary.NativeEndian.Uint32(b[16:])&1 != 0 {
			n = map[[4]byte]byte{{10, 77, 0, 1}: 1}[[4]byte(b[24:28])]
			if n == 0 {
				n = 9
			}
		}
		return s.perf(h, n), nil
	}
	i := int(b[3])
	h[4], h[5] = 0, 0
	if i < 1 || i > len(standInEndpoints) || b[4] != 0 {
		return finish(h, 2, nil), nil
	}
	ep := standInEndpoints[i-1]
	body := make([]byte, 80+64*len(ep.addrs))
	binary.BigEndian.PutUint64(body, 0x100000)
	body[8], body[9] = ep.port, 2
	binary.BigEndian.PutUint16(body[12:], ep.pkey)
	binary.BigEndian.PutUint16(body[14:], uint16(len(ep.addrs)))
	copy(body[16:], "ibacmp")
	for j, a := range ep.addrs {
		copy(body[80+64*j:], a)
	}
	return finish(h, 0, body), nil
}

// finish sets status and length; resolve replies are in host order.
func finish(h []byte, status byte, body []byte) []byte {
	h[2] = status
	b := append(h, body...)
	if h[1]&0xf == 1 {
		binary.NativeEndian.PutUint16(b[6:], uint16(len(b)))
	} else {
		binary.BigEndian.PutUint16(b[6:], uint16(len(b)))
	}
	return b
}

func (s *standIn) perf(h []byte, n byte) []byte {
	h[5] = 0
	if n > byte(len(standInEndpoints)) || n > 0 && n == s.noPerf {
		return finish(h, 7, nil)
	}
	h[3] = 7
	body := make([]byte, 56)
	for i := range 7 {
		binary.BigEndian.PutUint64(body[8*i:], uint64(100*int(n)+i))
	}
	return finish(h, 0, body)
}

func record(flags uint32, typ uint16, info []byte) []byte {
	b := make([]byte, 72)
	binary.NativeEndian.PutUint32(b, flags)
	binary.NativeEndian.PutUint16(b[4:], typ)
	copy(b[8:], info)
	return b
}

// labPath is node-a's path to a LID, with the lifetime that its origin gives.
func labPath(lid mad.LID, lifetime uint8) sa.PathRecord {
	var p sa.PathRecord
	p.SetSGID(mad.MakeGID(0xfe80<<48, 0x100001))
	p.SetDGID(mad.MakeGID(0xfe80<<48, mad.GUID(0x100000)+mad.GUID(max(lid, 2)-2)))
	p.SetSLID(3)
	p.SetDLID(lid)
	p.SetReversibleNumPath(true, 1)
	p.SetPKey(0xffff)
	p.SetMTU(sa.Exactly, 4)
	p.SetRate(sa.Exactly, 3)
	if lifetime > 0 {
		p.SetLifetime(sa.Exactly, lifetime)
	}
	return p
}

func (s *standIn) resolve(h []byte, q *resolver.Query) ([]byte, error) {
	var p sa.PathRecord
	switch q.Kind {
	case resolver.AskSA:
		p = q.Path
		switch p.DLID() {
		case 7:
			p.SetQoSClassSL(0, 3)
		case 8:
			return finish(h, 3, record(1<<31, 0x10, p[:])), nil
		}
		p.SetLifetime(sa.Exactly, 18)
		return finish(h, 0, record(1<<31, 0x10, p[:])), nil
	case resolver.ByPath:
		lid := q.Path.DLID()
		if q.Path.DGID() == mad.MakeGID(0xfe80<<48, 0x100003) {
			lid = 5
		}
		if l := q.Path.SLID(); l != 0 && l != 3 {
			return finish(h, 7, nil), nil
		}
		switch lid {
		case 5, 6, 7, 8, 0xbfff:
			p = labPath(lid, 18)
		case 9:
			return nil, errHangUp
		default:
			return finish(h, 3, nil), nil
		}
		h[1] = 1
		return finish(h, 0, record(0x2b, 0x10, p[:])), nil
	}
	return s.byAddress(h, q)
}

func (s *standIn) byAddress(h []byte, q *resolver.Query) ([]byte, error) {
	if q.Src.IsZero() {
		if q.Dst.Kind == cache.KindIPv4 && q.Dst.Data[3] == 3 {
			p := labPath(5, 0)
			h[1] = 1
			return finish(h, 0, append(record(0x2b, 0x10, p[:]), record(1, 2, []byte{10, 77, 0, 1})...)), nil
		}
		if q.Dst.Kind == cache.KindName {
			return finish(h, 10, nil), nil
		}
		return finish(h, 7, nil), nil
	}
	h[1] = 1
	switch string(q.Dst.Bytes()) {
	case "node-b", "node1", "node3", string([]byte{10, 77, 0, 2}):
		p := labPath(5, 0)
		return finish(h, 0, record(0x2b, 0x10, p[:])), nil
	}
	if q.NoDelay {
		return finish(h, 3, nil), nil
	}
	return finish(h, 6, nil), nil
}
