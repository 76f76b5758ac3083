// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
)

// unhex reads golden bytes; "x60" repeats the byte before it so often in all.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var b []byte
	for _, w := range strings.Fields(s) {
		if n := map[string]int{"x60": 60, "x59": 59}[w]; n > 0 {
			b = append(b, bytes.Repeat(b[len(b)-1:], n-1)...)
			continue
		}
		v, err := hex.DecodeString(w)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, v...)
	}
	return b
}

// Messages of Linux 6.1.192 and 6.12.117, little endian.
const (
	goldenAFIB = `98000000 0010 0100 01000000 00000000
		73696231 00 x60 01 00 0000
		0c00 0320 3412000000000000
		1400 0420 fe800000000000000200000000010201
		1400 0520 fe800000000000000200000000010101
		0500 0620 00000000
		0600 0720 ffff0000`
	goldenIPoIB = `8c000000 0010 0100 07000000 00000000
		73696231 00 x60 01 01 0000
		1400 0420 fe800000000000000200000000010201
		1400 0520 fe800000000000000200000000010101
		0500 0620 00000000
		0600 0720 ffff0000`
	goldenInet = `98000000 0010 0100 09000000 00000000
		73696231 00 x60 01 00 0000
		0c00 0320 34123f0100000000
		1400 0420 fe800000000000000200000000010201
		1400 0520 fe800000000000000200000000010101
		0600 0720 ffff0000
		0600 0820 20000000`
	goldenIP  = `1c000000 0210 0100 02000000 00000000 03000000 0800 0920 0a140009`
	goldenIP6 = `28000000 0210 0100 02000000 00000000 03000000 1400 0a20 20010db8000000000000000000000009`
)

func path(edit func(*sa.PathRecord)) (p sa.PathRecord) {
	p.SetDGID(mad.MakeGID(0xfe80<<48, 0x0200000000010201))
	p.SetSGID(mad.MakeGID(0xfe80<<48, 0x0200000000010101))
	p.SetPKey(0xffff)
	if edit != nil {
		edit(&p)
	}
	return p
}

func TestDecodeGolden(t *testing.T) {
	device := [64]byte{'s', 'i', 'b', '1'}
	hdr := func(n uint32, typ uint16, seq uint32) Header { return Header{Len: n, Type: typ, Flags: 1, Seq: seq} }
	for _, c := range []struct {
		name, bytes string
		want        Request
	}{
		{"rdma_cm, AF_IB", goldenAFIB, Request{Header: hdr(152, 0x1000, 1), Device: device, Port: 1,
			Path: path(func(p *sa.PathRecord) { p.SetServiceID(0x1234) })}},
		{"IPoIB", goldenIPoIB, Request{Header: hdr(140, 0x1000, 7), Device: device, Port: 1, Use: 1, Path: path(nil)}},
		{"rdma_cm, AF_INET", goldenInet, Request{Header: hdr(152, 0x1000, 9), Device: device, Port: 1,
			Path: path(func(p *sa.PathRecord) { p.SetServiceID(0x013f1234); p.SetQoSClassSL(0x20, 0) })}},
		{"IPv4", goldenIP, Request{Header: hdr(28, 0x1002, 2), Ifindex: 3, IP: resolver.IPAddr(netip.MustParseAddr("10.20.0.9"))}},
		{"IPv6", goldenIP6, Request{Header: hdr(40, 0x1002, 2), Ifindex: 3, IP: resolver.IPAddr(netip.MustParseAddr("2001:db8::9"))}},
	} {
		b := unhex(t, c.bytes)
		h, body, rest, err := Split(b)
		if err != nil || len(rest) != 0 {
			t.Errorf("%s: Split: %v, %d bytes left", c.name, err, len(rest))
			continue
		}
		var got Request
		if err := Decode(h, body, &got); err != nil || got != c.want {
			t.Errorf("%s: Decode: %v\ngot  %+v\nwant %+v", c.name, err, got, c.want)
		}
	}
}

func TestAnswerGolden(t *testing.T) {
	p := path(func(p *sa.PathRecord) {
		p.SetDLID(4)
		p.SetSLID(3)
		p.SetReversibleNumPath(true, 1)
		p.SetQoSClassSL(0, 5)
		p.SetMTU(sa.Exactly, 5)
		p.SetRate(sa.Exactly, 7)
		p.SetLifetime(sa.Exactly, 18)
	})
	h := Header{Len: 152, Type: typeResolve, Flags: 1, Seq: 1}
	ip := Header{Len: 28, Type: typeIPResolve, Flags: 1, Seq: 2}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"path", AppendPath(nil, &h, &p), `5c000000 0010 0000 01000000 00000000
			4c00 0100 2b000000 00000000
			0000000000000000 fe800000000000000200000000010201 fe800000000000000200000000010101
			0004 0003 00000000 00 81 ffff 0005 85 87 92 00 000000000000`},
		{"GID", AppendGID(nil, &ip, p.DGID()), `24000000 0210 0000 02000000 00000000 1400 0400 fe800000000000000200000000010201`},
		{"failure", AppendFailure(nil, &h), `10000000 0010 0001 01000000 00000000`},
		{"failure, IP", AppendFailure(nil, &ip), `10000000 0210 0001 02000000 00000000`},
		{"set timeout", appendSetTimeout(nil, 1, 5*time.Second), `18000000 0110 0500 01000000 00000000 0800 0200 88130000`},
	} {
		if want := unhex(t, c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s:\ngot  %x\nwant %x", c.name, c.got, want)
		}
		if len(c.got) > AnswerLen {
			t.Errorf("%s: %d bytes, AnswerLen is %d", c.name, len(c.got), AnswerLen)
		}
	}
}

func TestSplit(t *testing.T) {
	one := unhex(t, goldenIP)
	two := append(bytes.Clone(one), unhex(t, goldenIPoIB)...)
	_, _, rest, err := Split(two)
	if err != nil || len(rest) != 140 {
		t.Errorf("first of two: %v, %d bytes left", err, len(rest))
	}
	odd := unhex(t, `11000000 0210 0100 02000000 00000000 ff 000000`)
	if h, body, rest, err := Split(odd); err != nil || h.Len != 17 || len(body) != 1 || len(rest) != 0 {
		t.Errorf("padded: %+v %x %x %v", h, body, rest, err)
	}
	for _, bad := range []string{``, `1c`, `1c000000 0210 0100 02000000 000000`, `0f000000 0210 0100 02000000 00000000`,
		`11000000 0210 0100 02000000 00000000`, `ffffffff 0210 0100 02000000 00000000`} {
		if _, _, _, err := Split(unhex(t, bad)); !errors.Is(err, ErrMalformed) {
			t.Errorf("Split(%s) = %v", bad, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	const head = `73696231 00 x60 01 00 0000 `
	const dgid = `1400 0420 fe800000000000000200000000010201 `
	for _, c := range []struct {
		name  string
		typ   uint16
		body  string
		error string
	}{
		{"no family header", typeResolve, ``, "malformed message: RESOLVE of 0 bytes"},
		{"short family header", typeResolve, `73696231 00 x60 01 00 00`, "malformed message: RESOLVE of 67 bytes"},
		{"no attribute", typeResolve, head, "malformed message: RESOLVE without a DGID"},
		{"no DGID", typeResolve, head + `0600 0720 ffff0000`, "malformed message: RESOLVE without a DGID"},
		{"zero DGID", typeResolve, head + `1400 0420 00000000000000000000000000000000`, "malformed message: RESOLVE without a DGID"},
		{"short DGID", typeResolve, head + `0c00 0420 fe80000000000000`, "malformed message: attribute 4 has 8 bytes"},
		{"long SGID", typeResolve, head + dgid + `1800 0520 fe80000000000000020000000001010100000000`, "malformed message: attribute 5 has 20 bytes"},
		{"short service", typeResolve, head + dgid + `0800 0320 34120000`, "malformed message: attribute 3 has 4 bytes"},
		{"long TCLASS", typeResolve, head + dgid + `0600 0620 00000000`, "malformed message: attribute 6 has 2 bytes"},
		{"short PKEY", typeResolve, head + dgid + `0500 0720 ff000000`, "malformed message: attribute 7 has 1 bytes"},
		{"long QoS", typeResolve, head + dgid + `0800 0820 ff000000`, "malformed message: attribute 8 has 4 bytes"},
		{"unknown, mandatory", typeResolve, head + dgid + `0800 0b20 00000000`, "malformed message: mandatory attribute 11 is not known"},
		{"IPv4 in RESOLVE", typeResolve, head + dgid + `0800 0920 0a140009`, "malformed message: mandatory attribute 9 is not known"},
		{"nested", typeResolve, head + dgid + `0600 07a0 ffff0000`, "malformed message: mandatory attribute 32775 is not known"},
		{"attribute without end", typeResolve, head + `1500 0420 fe800000000000000200000000010201`, "malformed message: attribute of length 21 in 20 bytes"},
		{"attribute of length 0", typeResolve, head + `0000 0420`, "malformed message: attribute of length 0 in 4 bytes"},
		{"attribute of length 3", typeResolve, head + `0300 0420`, "malformed message: attribute of length 3 in 4 bytes"},
		{"bytes behind", typeResolve, head + dgid + `0600`, "malformed message: 2 bytes behind the attributes"},
		{"no interface", typeIPResolve, ``, "malformed message: IP_RESOLVE of 0 bytes"},
		{"no address", typeIPResolve, `03000000`, "malformed message: IP_RESOLVE without an address"},
		{"short IPv4", typeIPResolve, `03000000 0600 0920 0a140000`, "malformed message: attribute 9 has 2 bytes"},
		{"IPv4 of 16 bytes", typeIPResolve, `03000000 1400 0920 20010db8000000000000000000000009`, "malformed message: attribute 9 has 16 bytes"},
		{"IPv6 of 4 bytes", typeIPResolve, `03000000 0800 0a20 0a140009`, "malformed message: attribute 10 has 4 bytes"},
		{"answer of ours", typeSetTimeout, ``, ErrUnknown.Error()},
		{"unknown operation", typeResolve | 3, head + dgid, ErrUnknown.Error()},
		{"another client", 5<<10 | 1, head + dgid, ErrUnknown.Error()},
	} {
		h := Header{Type: c.typ, Seq: 77}
		var r Request
		err := Decode(h, unhex(t, c.body), &r)
		if err == nil || err.Error() != c.error {
			t.Errorf("%s: %v, want %s", c.name, err, c.error)
		}
		if r.Header != h {
			t.Errorf("%s: header %+v is lost", c.name, r.Header)
		}
	}
}

// What is not known and not marked as mandatory is left out, and the last of two
// attributes counts.
func TestDecodeTolerates(t *testing.T) {
	var r Request
	body := unhex(t, `73696231 00 x60 01 00 0000
		0700 0b00 ffffff00  1400 0400 fe80000000000000ffffffffffffffff  1400 0400 fe800000000000000200000000010201  0500 6300 ff`)
	if err := Decode(Header{Type: typeResolve}, body, &r); err != nil {
		t.Fatal(err)
	}
	if want := mad.MakeGID(0xfe80<<48, 0x0200000000010201); r.Path.DGID() != want {
		t.Errorf("DGID %v, want %v", r.Path.DGID(), want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{goldenAFIB, goldenIPoIB, goldenInet, goldenIP, goldenIP6} {
		f.Add(unhex(f, s))
	}
	f.Add(append(unhex(f, goldenIP), unhex(f, goldenIPoIB)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			h, body, rest, err := Split(b)
			if err != nil {
				break
			}
			if int(h.Len) != headerLen+len(body) || len(rest) >= len(b) {
				t.Fatalf("length %d, body %d, rest %d of %d", h.Len, len(body), len(rest), len(b))
			}
			b = rest
			var r Request
			err = Decode(h, body, &r)
			switch {
			case r.Header != h:
				t.Fatal("header is lost")
			case err == nil && r.IsIP() && (r.IP.IsZero() || r.Path != (sa.PathRecord{})):
				t.Fatalf("IP_RESOLVE decoded to %+v", r)
			case err == nil && !r.IsIP() && (r.Path.DGID().IsZero() || !r.IP.IsZero()):
				t.Fatalf("RESOLVE decoded to %+v", r)
			case err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrMalformed):
				t.Fatal(err)
			}
		}
	})
}
