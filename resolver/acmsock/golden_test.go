// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"

	"github.com/google/go-cmp/cmp"
)

// The golden bytes are those of a little-endian machine.
func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// unhex reads spaced hex text; a "*N" word stands for N zero bytes.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var out []byte
	for _, w := range strings.Fields(s) {
		if strings.HasPrefix(w, "*") {
			var n int
			for _, c := range w[1:] {
				n = n*10 + int(c-'0')
			}
			out = append(out, make([]byte, n)...)
			continue
		}
		b, err := hex.DecodeString(w)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\ngot\n%swant\n%s", what, hex.Dump(got), hex.Dump(want))
	}
}

// examplePath is the path of the worked example: fe80::10:5 to fe80::10:1.
func examplePath() (p sa.PathRecord) {
	p.SetDGID(mad.MakeGID(0xfe80<<48, 0x100001))
	p.SetSGID(mad.MakeGID(0xfe80<<48, 0x100005))
	p.SetDLID(1)
	p.SetSLID(4)
	p.SetReversibleNumPath(true, 0)
	p.SetPKey(0xffff)
	p.SetMTU(sa.Exactly, 4)
	p.SetRate(sa.Exactly, 3)
	p.SetLifetime(sa.Exactly, 18)
	return p
}

func ip4(a, b, c, d byte) (r resolver.Addr) {
	r.Kind, r.Len = cache.KindIPv4, 4
	copy(r.Data[:], []byte{a, b, c, d})
	return r
}

func TestGoldenResolve(t *testing.T) {
	if !littleEndian() {
		t.Skip("golden bytes are little endian")
	}
	want := unhex(t, `0101 0000 0000 a000 0100000000000000
		01000000 0200 0000 0a000001 *60
		02000040 0200 0000 0a000002 *60`)
	req := AppendResolve(nil, 1, SourceRecord(ip4(10, 0, 0, 1)), DestRecord(ip4(10, 0, 0, 2), true))
	same(t, "request", req, want)

	var q resolver.Query
	if st := ParseRequest(req, &q); st != resolver.StatusSuccess {
		t.Fatalf("status %d", st)
	}
	wantQ := resolver.Query{Kind: resolver.ByAddress, NoDelay: true, Src: ip4(10, 0, 0, 1), Dst: ip4(10, 0, 0, 2)}
	if diff := cmp.Diff(wantQ, q); diff != "" {
		t.Error(diff)
	}

	path := examplePath()
	reply := unhex(t, `0101 0000 0000 a000 0100000000000000
		2b000000 1000 0000 *8 fe800000000000000000000000100001 fe800000000000000000000000100005
		0001 0004 00000000 00 80 ffff 0000 84 83 92 00 *6
		01000000 0200 0000 0a000001 *60`)
	same(t, "reply with source", AppendAnswer(nil, req, &resolver.Answer{Path: path, Src: ip4(10, 0, 0, 1)}), reply)
	short := bytes.Clone(reply[:88])
	short[6] = 88
	same(t, "reply without source", AppendAnswer(nil, req, &resolver.Answer{Path: path}), short)

	got, err := DecodeResolve(reply)
	if err != nil {
		t.Fatal(err)
	}
	wantR := Resolved{Paths: []Path{{Flags: 0x2b, Record: path}}, Source: ip4(10, 0, 0, 1)}
	if diff := cmp.Diff(wantR, got); diff != "" {
		t.Error(diff)
	}
}

func TestGoldenLoopback(t *testing.T) {
	if !littleEndian() {
		t.Skip("golden bytes are little endian")
	}
	var p sa.PathRecord
	p.SetDGID(mad.MakeGID(0xfe80<<48, 0x100005))
	p.SetSGID(p.DGID())
	p.SetDLID(4)
	p.SetSLID(4)
	p.SetReversibleNumPath(true, 0)
	p.SetPKey(0xffff)
	p.SetMTU(0, 4)
	p.SetRate(0, 3)
	req := AppendResolve(nil, 0x1122334455667788, SourceRecord(resolver.NameAddr("nodeC")), DestRecord(resolver.NameAddr("nodeC"), false))
	same(t, "loopback", AppendAnswer(nil, req, &resolver.Answer{Path: p, Origin: resolver.OriginLoopback}), unhex(t, `
		01 01 00 00 00 00 58 00 88 77 66 55 44 33 22 11
		2b000000 1000 0000 0000000000000000 fe80000000000000 0000000000100005 fe80000000000000 0000000000100005
		0004 0004 00000000 00 80 ffff 0000 04 03 00 00 000000000000`))
}

// field case 12's notation: R(D4 192.168.50.39) with a known tid.
func TestGoldenDestinationOnly(t *testing.T) {
	if !littleEndian() {
		t.Skip("golden bytes are little endian")
	}
	same(t, "request", AppendResolve(nil, 0x1122334455667788, DestRecord(ip4(192, 168, 50, 39), false)),
		unhex(t, `01 01 00 00 00 00 58 00 88 77 66 55 44 33 22 11 02 00 00 00 02 00 00 00 C0 A8 32 27 *60`))
}

func TestGoldenErrors(t *testing.T) {
	if !littleEndian() {
		t.Skip("golden bytes are little endian")
	}
	req := AppendResolve(nil, 0x0807060504030201)
	const tid = "0102030405060708"
	for _, c := range []struct {
		name string
		a    resolver.Answer
		want string
	}{
		{"name without source", resolver.Answer{Status: resolver.StatusDestType, Core: true}, "0181 0a00 0000 1000"},
		{"source is not ours", resolver.Answer{Status: resolver.StatusSrcAddr, Core: true}, "0181 0700 0000 1000"},
		{"path without destination", resolver.Answer{Status: resolver.StatusDestAddr, Core: true}, "0181 0900 0000 1000"},
		{"no records", resolver.Answer{Status: resolver.StatusNoData}, "0101 0300 0000 1000"},
		{"timed out", resolver.Answer{Status: resolver.StatusTimedOut}, "0101 0600 0000 1000"},
	} {
		same(t, c.name, AppendAnswer(nil, req, &c.a), unhex(t, c.want+tid))
		if c.a.Core {
			same(t, c.name+" at the door", appendError(nil, req, c.a.Status), unhex(t, c.want+tid))
		}
	}
}

func goldenEndpoints() *fakeResolver {
	f := newFake()
	f.eps = []*resolver.Endpoint{{
		Device: "mlx5_0", NodeGUID: 0x100004, Port: transport.PortInfo{Num: 1}, PhysPorts: 1, PKey: 0xffff,
		Provider: "ibacmp",
		Addrs: []resolver.LocalAddr{
			{Addr: resolver.NameAddr("nodeC"), Text: "nodeC"},
			{Addr: resolver.NameAddr("nodeC-alt"), Text: "nodeC-alt"},
		},
	}}
	f.totals = resolver.Counters{1, 2, 3, 4, 5, 6, 7}
	f.perEP = resolver.Counters{11, 12, 13, 14, 15, 16, 17}
	return f
}

// field case 79: seven values in network order, index range checked.
func TestGoldenPerf(t *testing.T) {
	f := goldenEndpoints()
	tid := "0102030405060708"
	num := func(base byte) (s string) {
		for i := byte(1); i <= 7; i++ {
			s += " *7 " + hex.EncodeToString([]byte{base + i})
		}
		return s
	}
	req := unhex(t, "01 02 00 00 00 00 00 10"+tid)
	same(t, "totals", appendPerf(nil, req, f), unhex(t, "01 82 00 07 00 00 00 48"+tid+num(0)))
	req[4] = 1
	same(t, "by index", appendPerf(nil, req, f), unhex(t, "01 82 00 07 01 00 00 48"+tid+num(10)))
	req[4] = 2
	same(t, "missing", appendPerf(nil, req, f), unhex(t, "01 82 07 00 02 00 00 10"+tid))
	req[3] = 9
	same(t, "missing, src_out echoed", appendPerf(nil, req, f), unhex(t, "01 82 07 09 02 00 00 10"+tid))

	src := resolver.NameAddr("NODEC")
	b := AppendPerf(nil, 0, 0, &src)
	if b[6] != 0 || b[7] != 88 {
		t.Errorf("length % x", b[6:8])
	}
	same(t, "by address", appendPerf(nil, b, f), unhex(t, "01 82 00 07 00 00 00 48 *8 "+num(10)))
	src = resolver.NameAddr("other")
	same(t, "unknown address", appendPerf(nil, AppendPerf(nil, 0, 0, &src), f), unhex(t, "01 82 07 00 00 00 00 10 *8"))
	b = AppendPerf(nil, 0, 0, &src)
	binary.NativeEndian.PutUint16(b[20:], 6)
	same(t, "unknown type", appendPerf(nil, b, f), unhex(t, "01 82 07 00 00 00 00 10 *8"))
	binary.NativeEndian.PutUint32(b[16:], FlagDest)
	same(t, "record without source flag", appendPerf(nil, b, f), unhex(t, "01 82 00 07 00 00 00 48 *8"+num(0)))
}

func TestGoldenEndpoint(t *testing.T) {
	f := goldenEndpoints()
	tid := "0102030405060708"
	req := unhex(t, "01 03 00 01 00 00 00 10"+tid)
	want := append(unhex(t, "01 83 00 01 00 00 00 e0"+tid+"0000000000100004 01 01 0000 ffff 0002"),
		append(appendText(nil, "ibacmp"), append(appendText(nil, "nodeC"), appendText(nil, "nodeC-alt")...)...)...)
	same(t, "endpoint 1", appendEndpoint(nil, req, f), want)
	if len(want) != 224 {
		t.Errorf("%d bytes", len(want))
	}
	e, err := DecodeEndpoint(want)
	if err != nil {
		t.Fatal(err)
	}
	wantE := EndpointInfo{NodeGUID: 0x100004, Port: 1, PhysPorts: 1, PKey: 0xffff, Provider: "ibacmp", Addrs: []string{"nodeC", "nodeC-alt"}}
	if diff := cmp.Diff(wantE, e); diff != "" {
		t.Error(diff)
	}
	req[3] = 3
	same(t, "missing", appendEndpoint(nil, req, f), unhex(t, "01 83 02 03 00 00 00 10"+tid))
	req[3] = 0
	same(t, "index 0", appendEndpoint(nil, req, f), unhex(t, "01 83 02 00 00 00 00 10"+tid))
	req[3], req[4] = 1, 2
	same(t, "no such port, filter not echoed", appendEndpoint(nil, req, f), unhex(t, "01 83 02 01 00 00 00 10"+tid))
}

// field case 28: many addresses; what the length field cannot tell is cut.
func TestEndpointManyAddresses(t *testing.T) {
	for _, n := range []int{0, 300, maxEndpointAddrs, maxEndpointAddrs + 500} {
		f := goldenEndpoints()
		f.eps[0].Addrs = make([]resolver.LocalAddr, n)
		for i := range f.eps[0].Addrs {
			f.eps[0].Addrs[i].Text = strings.Repeat("x", i%70)
		}
		b := appendEndpoint(nil, AppendEndpoint(nil, 1, 1, 0), f)
		e, err := DecodeEndpoint(b)
		if err != nil {
			t.Fatalf("%d addresses: %v", n, err)
		}
		if want := min(n, maxEndpointAddrs); len(e.Addrs) != want || len(b) > MaxReply {
			t.Errorf("%d addresses: got %d in %d bytes", n, len(e.Addrs), len(b))
		}
	}
}

// The order of endpoint indices with a port filter, on two ports and devices.
func TestEndpointPortFilter(t *testing.T) {
	f := newFake()
	for _, p := range []uint8{1, 2, 1, 2, 2} {
		f.eps = append(f.eps, &resolver.Endpoint{NodeGUID: mad.GUID(len(f.eps) + 1), Port: transport.PortInfo{Num: p}})
	}
	for _, c := range []struct {
		index, port uint8
		want        mad.GUID
	}{{1, 0, 1}, {5, 0, 5}, {6, 0, 0}, {1, 1, 1}, {2, 1, 3}, {3, 1, 0}, {1, 2, 2}, {3, 2, 5}, {1, 3, 0}} {
		ep := endpointAt(f.eps, int(c.index), c.port)
		var got mad.GUID
		if ep != nil {
			got = ep.NodeGUID
		}
		if got != c.want {
			t.Errorf("index %d port %d: endpoint %d, want %d", c.index, c.port, got, c.want)
		}
	}
}

func TestGoldenSA(t *testing.T) {
	if !littleEndian() {
		t.Skip("golden bytes are little endian")
	}
	asked := examplePath()
	req := AppendResolve(nil, 1, PathQuery(asked, FlagQuerySA))
	var q resolver.Query
	if st := ParseRequest(req, &q); st != 0 || q.Kind != resolver.AskSA || q.Path != asked {
		t.Fatalf("status %d, %+v", st, q)
	}
	head := "0181 0000 0000 5800 0100000000000000 00000080 1000 0000"
	same(t, "request", req, append(unhex(t, "0101 0000 0000 5800 0100000000000000 00000080 1000 0000"), asked[:]...))
	found := asked
	found.SetLifetime(sa.Exactly, 3)
	reply := appendSAReply(nil, req, 0, &resolver.Answer{Asked: true, Path: found})
	same(t, "answered", reply, append(unhex(t, head), found[:]...))
	failed := appendSAReply(nil, req, 3, &resolver.Answer{Status: 3, Asked: true})
	same(t, "answered with a failure", failed, unhex(t, "0181 0300 0000 5800 0100000000000000 00000080 1000 0000 *64"))
	out := appendSAReply(nil, req, 6, &resolver.Answer{Status: 6, Path: found})
	same(t, "not answered", out, append(unhex(t, "0181 0600 0000 5800 0100000000000000 00000080 1000 0000"), asked[:]...))
	long := AppendResolve(nil, 1, PathQuery(asked, FlagQuerySA), Record{})
	if st := ParseRequest(long, &q); st != resolver.StatusInvalid {
		t.Errorf("160 bytes: status %d", st)
	}
	same(t, "wrong length", appendSAReply(nil, long, 2, nil), append(append(unhex(t,
		"0181 0200 0000 a000 0100000000000000 00000080 1000 0000"), asked[:]...), make([]byte, 72)...))

	p, err := DecodeSA(reply)
	if err != nil || p != found {
		t.Errorf("decoded %v, %v", p, err)
	}
	p, err = DecodeSA(out)
	if se, ok := err.(*StatusError); !ok || se.Status != resolver.StatusTimedOut || !se.Core || p != asked {
		t.Errorf("decoded %v, %v", p, err)
	}
}
