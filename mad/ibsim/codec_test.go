// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string, size int) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, size-len(b))...)
}

// The CONNECT of client 1234 to HcaB, as ibsim's own client sends it on a
// little-endian machine. The first seven words are in host order.
const connectGolden = `ef be ad de 00 00 00 00 01 00 00 00 2c 00 00 00
	d2 04 00 00 00 00 00 00 00 00 00 00 48 63 61 42`

func TestConnectGolden(t *testing.T) {
	info := clientInfo(1234, 0, false, "HcaB")
	got := appendControl(nil, 0, ctlConnect, &info, clientInfoSize)
	want := unhex(t, connectGolden, controlSize)
	for i := 0; i < 28; i += 4 {
		he.PutUint32(want[i:], binary.LittleEndian.Uint32(want[i:]))
	}
	if !bytes.Equal(got, want) {
		t.Errorf("connect:\n%s", cmp.Diff(hex.Dump(want), hex.Dump(got)))
	}
}

func TestClientInfo(t *testing.T) {
	d := clientInfo(7070, 0x4d, true, strings.Repeat("x", 40))
	if he.Uint32(d[0:]) != 7070 || he.Uint32(d[4:]) != 0x4d || he.Uint32(d[8:]) != 1 {
		t.Errorf("client info %x", d)
	}
	if d[42] != 'x' || d[43] != 0 {
		t.Errorf("node identifier is not ended by a NUL: %q", d[12:44])
	}
}

func TestControlRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var data controlData
		copy(data[:], rapid.SliceOfN(rapid.Byte(), controlDataSize, controlDataSize).Draw(t, "data"))
		client, typ := rapid.Uint32().Draw(t, "client"), controlType(rapid.Uint32().Draw(t, "type"))
		b := appendControl(nil, client, typ, &data, rapid.IntRange(0, controlDataSize).Draw(t, "length"))
		c, k, d, err := parseControl(b)
		if err != nil || c != client || k != typ || d != data {
			t.Fatalf("%d %v %x %v", c, k, d, err)
		}
	})
}

func TestParseControlRefuses(t *testing.T) {
	good := appendControl(nil, 0, ctlGetPortInfo, &controlData{}, 64)
	for name, edit := range map[string]func([]byte) []byte{
		"short":      func(b []byte) []byte { return b[:79] },
		"long":       func(b []byte) []byte { return append(b, 0) },
		"empty":      func([]byte) []byte { return nil },
		"magic":      func(b []byte) []byte { b[0] ^= 1; return b },
		"too much":   func(b []byte) []byte { he.PutUint32(b[12:], 65); return b },
		"minus one":  func(b []byte) []byte { he.PutUint32(b[12:], 1<<32-1); return b },
		"other side": func(b []byte) []byte { b[0], b[1], b[2], b[3] = b[3], b[2], b[1], b[0]; return b },
	} {
		if _, _, _, err := parseControl(edit(bytes.Clone(good))); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// ClassPortInfo Get to LID 1, QP1, TID 0x11.
const packetGolden = `00 01 00 00 00 00 00 00 00 00 00 01 00 00 00 01
	00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 00`

// field case 13: LIDs and QP numbers in the packet header are big endian, the
// LID in the first two bytes of its field.
func TestOutgoingGolden(t *testing.T) {
	var p packetHeader
	for _, c := range []struct {
		name     string
		lid      mad.LID
		qpn, sqp mad.QPN
		want     string
	}{
		{"QP1", 1, 1, 1, packetGolden},
		{"own QP", 0x1234, 1, 0x4d, "1234 0000 0000 0000 00000001 0000004d 00000000 00000000 0000000000000100"},
		{"far QP", 2, 0xabcdef, 1, "0002 0000 0000 0000 00abcdef 00000001 00000000 00000000 0000000000000100"},
		{"directed route", 0xffff, 0, 1, "ffff 0000 ffff 0000 00000000 00000000 00000000 00000000 0000000000000100"},
	} {
		for i := range p {
			p[i] = 0xee // what an earlier packet left
		}
		var h mad.UserHeader
		h.SetLID(c.lid)
		h.SetQPN(c.qpn)
		p.outgoing(&h, c.sqp)
		if want := unhex(t, c.want, packetHeaderSize); !bytes.Equal(p[:], want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, p, want)
		}
	}
}

// packet builds a slot as a read leaves it.
func packet(t testing.TB, header string, method uint8) *[ring.SlotSize]byte {
	var s [ring.SlotSize]byte
	for i := range s {
		s[i] = 0xee
	}
	copy(s[packetOffset:], unhex(t, header, packetHeaderSize))
	m := (*mad.Packet)(s[mad.UserHeaderSize:])
	m.Init(mad.ClassSA, 2, method)
	m.SetTID(0x0001_0000_0000_0042)
	return &s
}

func TestAccept(t *testing.T) {
	var answer, back mad.UserHeader
	answer.SetLID(1)
	answer.SetQPN(1)
	answer.SetQKey(mad.WellKnownQKey)
	full := answer
	answer.SetLength(64 + 120)
	full.SetLength(320)
	back.SetStatus(mad.StatusTimeout)
	back.SetLID(0x3e7)
	back.SetQPN(1)
	back.SetLength(64 + 24)
	for _, c := range []struct {
		name, header string
		method       uint8
		want         *mad.UserHeader
	}{
		{"answer", "0003 0000 0001 0000 00000001 00000001 00000000 00000000 0000000000000078", mad.MethodGetResp, &answer},
		{"no length", "0003 0000 0001 0000 00000001 00000001 00000000 00000000 0000000000000000", mad.MethodGetResp, &full},
		{"length below a header", "0003 0000 0001 0000 00000001 00000001 00000000 00000000 0000000000000017", mad.MethodGetResp, &full},
		{"length beyond a MAD", "0003 0000 0001 0000 00000001 00000001 00000000 00000000 ffffffffffffff00", mad.MethodGetResp, &full},
		{"rubbish beside the LID and QP", "0003 ffff 0001 ffff 00000001 ff000001 00000000 ffffffff 0000000000000078", mad.MethodGetResp, &answer},
		{"undeliverable", "03e7 0000 0003 0000 00000001 00000001 0000006e 00000000 0000000000000100", mad.MethodGet, &back},
		{"undeliverable answer of ours", "03e7 0000 0003 0000 00000001 00000001 0000006e 00000000 0000000000000100", mad.MethodReportResp, nil},
	} {
		s := packet(t, c.header, c.method)
		ok := accept(s)
		if ok != (c.want != nil) {
			t.Errorf("%s: accepted %v", c.name, ok)
		}
		if h := (*mad.UserHeader)(s[:mad.UserHeaderSize]); ok && *h != *c.want {
			t.Errorf("%s:\n got %x\nwant %x", c.name, *h, *c.want)
		}
		if m := (*mad.Packet)(s[mad.UserHeaderSize:]); m.Method() != c.method || m.TID() != 0x0001_0000_0000_0042 {
			t.Errorf("%s: the MAD was changed", c.name)
		}
	}
}

// FuzzAccept gives a slot any bytes, as a simulator can.
func FuzzAccept(f *testing.F) {
	f.Add(unhex(f, packetGolden, packetSize))
	f.Add(bytes.Repeat([]byte{0xff}, packetSize))
	f.Add([]byte{16: 0, 19: 110, 35: 0x81})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s [ring.SlotSize]byte
		copy(s[packetOffset:], b)
		m := *(*mad.Packet)(s[mad.UserHeaderSize:])
		status := binary.BigEndian.Uint32(s[packetOffset+16:])
		ok := accept(&s)
		if *(*mad.Packet)(s[mad.UserHeaderSize:]) != m {
			t.Fatal("the MAD was changed")
		}
		if ok == (status != 0 && m.IsResponse()) {
			t.Fatalf("accepted %v: status %d, response %v", ok, status, m.IsResponse())
		}
		h := (*mad.UserHeader)(s[:mad.UserHeaderSize])
		if ok && (h.Status() != status || h.Length() < 64+24 || h.Length() > ring.SlotSize || h.QPN() > 0xffffff || h.HasGRH()) {
			t.Fatalf("header %x", *h)
		}
	})
}

// FuzzControl decodes any datagram as a control message, and what it carries as
// attributes.
func FuzzControl(f *testing.F) {
	f.Add(unhex(f, connectGolden, controlSize))
	f.Add(appendControl(nil, 3, ctlGetPortInfo, &controlData{8: 0xfe, 9: 0x80, 17: 5, 19: 1, 31: 2, 32: 4, 35: 0x44, 36: 0x40}, 64))
	f.Add([]byte{0xef, 0xbe, 0xad, 0xde})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, d, err := parseControl(b)
		if err != nil {
			return
		}
		n := parseNodeInfo(&d)
		p := parsePortInfo(n, &d, &d)
		if p.Num != 1 || p.LMC > 7 || p.SMSL > 15 || p.State > 15 || p.SubnetTimeout > 31 || p.Rate > 24 ||
			len(p.GIDs) != 1 || p.GIDs[0].Prefix() == 0 || len(p.PKeys) != pkeyCount {
			t.Fatalf("%+v", p)
		}
	})
}

func TestParsePortInfo(t *testing.T) {
	var d, keys controlData
	copy(d[8:], []byte{0xfe, 0xc0, 0, 0, 0, 0, 0, 1})
	copy(d[16:], []byte{0x12, 0x34, 0x00, 0x01, 0x00, 0x50, 0xc0, 0x48})
	d[28], d[31], d[32], d[34], d[35], d[36], d[51], d[62] = 1, 2, 0x14, 0xc3, 0x47, 0x53, 0xf2, 0x20
	copy(keys[:], []byte{0x7f, 0xff, 0, 0, 0x80, 0x01})
	got := parsePortInfo(nodeInfo{nodeTypeCA, 0x100000}, &d, &keys)
	want := transport.PortInfo{Num: 1, State: mad.PortActive, LID: 0x1234, LMC: 3, SMLID: 1, SMSL: 3, CapMask: 0x0050c048,
		MTU: 5, Rate: 16, SubnetTimeout: 18, GIDs: []mad.GID{mad.MakeGID(0xfec0<<48|1, 0x100001)},
		PKeys: append([]mad.PKey{0x7fff, 0, 0x8001}, make([]mad.PKey, 29)...)}
	if !cmp.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	// A switch is known by the node's GUID.
	if got := parsePortInfo(nodeInfo{2, 0x200000}, &d, &keys).GIDs[0].GUID(); got != 0x200000 {
		t.Errorf("port GUID of a switch: %v", got)
	}
}

// The Gb/s of each rate code, from IBTA vol. 1 and its annexes.
var gbps = map[mad.Rate]float64{2: 2.5, 5: 5, 3: 10, 6: 20, 4: 30, 7: 40, 8: 60, 9: 80, 10: 120, 11: 14, 12: 56, 13: 112,
	14: 168, 15: 25, 16: 100, 17: 200, 18: 300, 19: 28, 20: 50, 21: 400, 22: 600, 23: 800, 24: 1200}

func TestLinkRate(t *testing.T) {
	lanes := map[uint8]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
	for w, n := range lanes {
		for s, lane := range map[uint8]float64{1: 2.5, 2: 5, 4: 10} {
			if got := gbps[linkRate(w, s, 0)]; got != n*lane {
				t.Errorf("width %d speed %d: %v Gb/s, want %v", w, s, got, n*lane)
			}
		}
		for e, lane := range map[uint8]float64{1: 14, 2: 25, 4: 50, 8: 100} {
			if got := gbps[linkRate(w, 4, e)]; got != n*lane {
				t.Errorf("width %d extended speed %d: %v Gb/s, want %v", w, e, got, n*lane)
			}
		}
	}
	for _, c := range [][3]uint8{{0, 4, 0}, {3, 4, 0}, {32, 4, 0}, {2, 0, 0}, {2, 8, 0}, {2, 4, 3}} {
		if got := linkRate(c[0], c[1], c[2]); got != 0 {
			t.Errorf("%v: rate %d, want 0 for what is not known", c, got)
		}
	}
}

func TestParseOptions(t *testing.T) {
	for in, want := range map[string]Config{
		"":                                  {},
		"sim7":                              {Base: "sim7"},
		"sim,node=node-a":                   {Base: "sim", Node: "node-a"},
		",node=h1,issm":                     {Node: "h1", ISSM: true},
		",remote=127.0.0.1:7171,qp=0x4d":    {Remote: "127.0.0.1:7171", QP: 0x4d},
		"b,qp=16777215,node=a=b":            {Base: "b", QP: 0xffffff, Node: "a=b"},
		strings.Repeat("b", 80) + ",node=x": {Base: strings.Repeat("b", 80), Node: "x"},
	} {
		if got, err := ParseOptions(in); err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"sim,", "sim,node", "sim,node=", "node=a", "sim,qp=1", "sim,qp=0", "sim,qp=16777216", "sim,qp=x",
		"sim,issm=1", "sim,remote=", "sim,speed=9", "s\x00m", strings.Repeat("b", 81), "sim,node=" + strings.Repeat("n", 32)} {
		if c, err := ParseOptions(in); err == nil {
			t.Errorf("%q: accepted as %+v", in, c)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	f.Add("sim,node=node-a,issm,qp=77,remote=localhost:7070")
	f.Add(",,=")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseOptions(s)
		if err == nil && (len(c.Base) > maxBaseLen || len(c.Node) > maxNodeLen || c.QP == 1) {
			t.Fatalf("%q: %+v", s, c)
		}
	})
}

func TestDefaults(t *testing.T) {
	t.Setenv("IBSIM_SOCKNAME", "from-env")
	for _, c := range []struct{ in, want Config }{
		{Config{}, Config{Base: "from-env", Slots: 256, Poll: time.Second, control: controlTime}},
		{Config{Base: "own", Slots: 64, Poll: 5}, Config{Base: "own", Slots: 64, Poll: 5, control: controlTime}},
		{Config{Remote: "localhost"}, Config{Remote: "localhost:7070", Slots: 256, Poll: time.Second, control: controlTime}},
		{Config{Remote: "h:1"}, Config{Remote: "h:1", Slots: 256, Poll: time.Second, control: controlTime}},
	} {
		if got, err := c.in.withDefaults(); err != nil || got != c.want {
			t.Errorf("%+v: %+v, %v", c.in, got, err)
		}
	}
	t.Setenv("IBSIM_SOCKNAME", "")
	if got, err := (Config{}).withDefaults(); err != nil || got.Base != "sim" {
		t.Errorf("%+v, %v", got, err)
	}
	t.Setenv("IBSIM_SOCKNAME", strings.Repeat("x", 81))
	if _, err := (Config{}).withDefaults(); err == nil {
		t.Error("a socket name of 81 bytes was accepted from the environment")
	}
	for _, c := range []Config{{Slots: -1}, {Slots: 1<<16 + 1}, {Poll: -1}, {QP: 1 << 24}} {
		if _, err := c.withDefaults(); err == nil {
			t.Errorf("%+v: accepted", c)
		}
	}
}
