// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"acmd/resolver"
)

// seeds are the messages that field case 12 asks to keep, and one of each kind.
func seeds() [][]byte {
	src, dst := rec(FlagSource, TypeIPv4, 10, 0, 0, 1), rec(FlagDest, TypeIPv4, 10, 0, 0, 2)
	out := [][]byte{
		{}, {1}, make([]byte, 15), make([]byte, 16),
		ask(1, 0, 1), ask(0, 1, 1), ask(0, 2, 1), append(ask(2, 1, 2), ask(3, 0, 3)...),
		AppendResolve(nil, 1), AppendResolve(nil, 1, dst, src), AppendResolve(nil, 1, dst),
		AppendResolve(nil, 1, src, src), AppendResolve(nil, 1, src, dst, dst),
		AppendResolve(nil, 1, dst, Record{}, Record{}, Record{}, Record{}, Record{}, Record{}, Record{}),
		AppendResolve(nil, 1, src, rec(FlagDest, TypeGID, 0xfe)), AppendResolve(nil, 1, src, rec(FlagDest, TypeLID, 0, 9)),
		AppendResolve(nil, 1, PathQuery(examplePath(), 0)), AppendResolve(nil, 1, PathQuery(examplePath(), FlagQuerySA)),
		AppendResolve(nil, 1, PathQuery(examplePath(), FlagQuerySA), Record{}),
		AppendPerf(nil, 1, 0, nil), AppendPerf(nil, 1, 1, nil), AppendEndpoint(nil, 1, 1, 0), AppendEndpoint(nil, 1, 9, 1),
		resize(ask(1, 0, 1), MaxRequest), resize(AppendResolve(nil, 1, dst), 87), resize(AppendResolve(nil, 1, dst), 89),
	}
	a := ip4(10, 0, 0, 1)
	out = append(out, AppendPerf(nil, 1, 0, &a))
	for _, v := range []byte{0, 2} {
		b := ask(1, 0, 1)
		b[0] = v
		out = append(out, b)
	}
	for _, o := range []byte{0, 4, 0x0f, 0x11, 0x81, 0x82, 0xff} {
		b := ask(1, 0, 1)
		b[1] = o
		out = append(out, b)
	}
	for _, n := range []int{0, 15, 593, 65535} {
		b := ask(1, 0, 1)
		putLength(b, n)
		out = append(out, b)
	}
	return out
}

func FuzzParseRequest(f *testing.F) {
	for _, s := range seeds() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q := resolver.Query{Src: ip4(9, 9, 9, 9), NoDelay: true} // left over from another request
		st := ParseRequest(b, &q)
		if st != resolver.StatusSuccess {
			if len(b) >= HeaderSize {
				checkRefusal(t, b, st, q.Kind)
			}
			return
		}
		for _, a := range []*resolver.Addr{&q.Src, &q.Dst} {
			for _, c := range a.Data[a.Len:] {
				if c != 0 {
					t.Fatalf("bytes behind an address: %x", a.Data)
				}
			}
		}
		switch q.Kind {
		case resolver.ByAddress:
			if q.Dst.Kind < 1 || q.Dst.Kind > 3 || q.Dst.Len == 0 {
				t.Fatalf("destination %+v", q.Dst)
			}
		case resolver.ByPath:
			if q.Path.DLID() == 0 && q.Path.DGID().IsZero() {
				t.Fatal("path without destination")
			}
		}
		var again resolver.Query
		if ParseRequest(b, &again) != st || again != q {
			t.Fatal("not the same twice")
		}
	})
}

func checkRefusal(t *testing.T, b []byte, st resolver.Status, kind resolver.QueryKind) {
	r := appendError(nil, b, st)
	if kind == resolver.AskSA {
		r = appendSAReply(nil, b, st, nil)
		if len(r) != len(b) {
			t.Fatalf("%d bytes for %d", len(r), len(b))
		}
		return
	}
	if len(r) != HeaderSize || r[offStatus] == 0 || TID(r) != TID(b) {
		t.Fatalf("% x", r)
	}
}

// FuzzServer feeds a stream to a live server, cut anywhere. It may answer each
// framed request once and one fault; it must say nothing else, and go on
// serving others.
func FuzzServer(f *testing.F) {
	for i, s := range seeds() {
		f.Add(s, uint16(i))
		f.Add(append(ask(1, 0, 1), s...), uint16(7*i))
	}
	r := goldenEndpoints()
	s := serve(f, r, nil)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // answers what waits, or half-closed clients would stay
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				r.releaseAll()
			}
		}
	})
	f.Cleanup(func() { close(stop); wg.Wait() })
	addr := s.Addrs()[0]
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		c, err := net.Dial(addr.Network(), addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		go func() {
			n := min(int(cut), len(b))
			c.Write(b[:n])
			c.Write(b[n:])
			c.(*net.UnixConn).CloseWrite()
		}()
		out, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the server neither answered nor closed")
		}
		checkStream(t, b, out, err == nil)
	})
}

// checkStream compares replies with what was asked: in order, no more than
// that, and with whole set, exactly that apart from superseded requests.
func checkStream(t *testing.T, in, out []byte, whole bool) {
	var owed []uint64 // tids
	for len(in) >= HeaderSize {
		n, fault := Frame(in)
		if fault == FaultNone && n > len(in) {
			break
		}
		owed = append(owed, TID(in))
		if fault != FaultNone {
			break
		}
		in = in[n:]
	}
	for len(out) >= HeaderSize {
		n := lengthOf(out)
		if out[0] != Version || n < HeaderSize {
			t.Fatalf("reply % x", out)
		}
		if n > len(out) {
			break
		}
		for len(owed) > 0 && owed[0] == 0 && TID(out) != 0 {
			owed = owed[1:] // superseded
		}
		if len(owed) == 0 || owed[0] != TID(out) {
			t.Fatalf("reply to %x, owed %x", TID(out), owed)
		}
		owed, out = owed[1:], out[n:]
	}
	for len(owed) > 0 && owed[0] == 0 {
		owed = owed[1:]
	}
	if whole && (len(out) > 0 || len(owed) > 0) {
		t.Fatalf("%d bytes left over, owed %x", len(out), owed)
	}
}

func FuzzDecodeReply(f *testing.F) {
	r := goldenEndpoints()
	f.Add(AppendAnswer(nil, ask(1, 0, 1), &resolver.Answer{Path: examplePath(), Src: ip4(10, 0, 0, 1)}))
	f.Add(AppendAnswer(nil, ask(1, 0, 1), &resolver.Answer{Status: resolver.StatusNoData}))
	f.Add(appendPerf(nil, AppendPerf(nil, 1, 0, nil), r))
	f.Add(appendEndpoint(nil, AppendEndpoint(nil, 1, 1, 0), r))
	for _, s := range seeds() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := DecodeResolve(b); err == nil && (len(got.Paths) == 0 || len(got.Paths) > MaxRecords) {
			t.Fatalf("%d paths", len(got.Paths))
		}
		if c, err := DecodePerf(b); err == nil && len(c) != int(b[offSrcOut]) {
			t.Fatalf("%d counters", len(c))
		}
		if e, err := DecodeEndpoint(b); err == nil && len(e.Addrs) != (len(b)-HeaderSize-endpointBody)/endpointAddr {
			t.Fatalf("%d addresses", len(e.Addrs))
		}
		DecodeSA(b)
	})
}
