// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// The committed netlist is what the generator writes.
func TestNetlistIsGenerated(t *testing.T) {
	want, err := os.ReadFile("../lab/peerlab/netlists/n600.net")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := genNet(&got, 600, 24, 4); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("n600.net is not the output of: acmload gen net -n 600")
	}
}

func TestWriteDests(t *testing.T) {
	const in = "0x0000000000100003 0x0005 0x0005\n\n0x100001 0x0003 0x0003\n0x200000 2 2\nrubbish\n0x100005 99999 1\n"
	for kind, want := range map[string]string{
		"lid": "lid:5 fe80::10:3 5\n",
		"gid": "gid:fe80::10:3 fe80::10:3 5\n",
	} {
		var got strings.Builder
		if err := writeDests(&got, strings.NewReader(in), kind, 0x200000, 3); err != nil || got.String() != want {
			t.Errorf("%s: %q, %v", kind, got.String(), err)
		}
	}
	if err := writeDests(new(strings.Builder), strings.NewReader(in), "name", 1, 0); err == nil {
		t.Error("kind name was accepted")
	}
}

// golden checks a message whose first fields are in host order.
func golden(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	w, err := hex.DecodeString(strings.ReplaceAll(want, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		slices.Reverse(w[6:8])
		slices.Reverse(w[8:16])
		for e := w[hdrLen:]; len(e) >= 8; e = e[min(epLen, len(e)):] {
			slices.Reverse(e[0:4])
			slices.Reverse(e[4:6])
		}
	}
	if !bytes.HasPrefix(got, w) || len(bytes.Trim(got[len(w):], "\x00")) != 0 {
		t.Errorf("%s:\n got %x\nwant %x", what, got, w)
	}
}

func TestRequestGolden(t *testing.T) {
	const tid = 0x1122334455667788
	var b [maxMsg]byte
	one, err := newTarget("ip:192.168.50.39", "fe80::1", "17", "")
	if err != nil {
		t.Fatal(err)
	}
	n := one.request(b[:], tid, false, 0)
	if n != 88 {
		t.Errorf("length %d", n)
	}
	golden(t, "one destination", b[:n], "01 01 00 00 00 00 58 00 88 77 66 55 44 33 22 11 02 00 00 00 02 00 00 00 C0 A8 32 27")

	two, err := newTarget("ip:10.77.0.2", "fe80::10:3", "5", "ip:10.77.0.1")
	if err != nil {
		t.Fatal(err)
	}
	n = two.request(b[:], tid, true, 0)
	golden(t, "source, cached only", b[:n], "01 01 00 00 00 00 a0 00 88 77 66 55 44 33 22 11 01 00 00 00 02 00 00 00 0a 4d 00 01"+
		strings.Repeat("00", 60)+"02 00 00 40 02 00 00 00 0a 4d 00 02")

	path, err := newTarget("lid:5", "fe80::10:3", "5", "lid:3")
	if err != nil {
		t.Fatal(err)
	}
	n = path.request(b[:], tid, false, 592)
	golden(t, "path, padded", b[:n], "01 01 00 00 00 00 50 02 88 77 66 55 44 33 22 11 00 00 00 00 10 00 00 00"+
		strings.Repeat("00", 40)+"00 05 00 03 00 00 00 00 00 81")
}

// reply builds the right answer to a target with a source.
func reply(tgt *target, tid uint64) []byte {
	b := make([]byte, hdrLen+epLen)
	e := endpoint{typ: typePath}
	copy(e.info[8:], tgt.dgid[:])
	binary.BigEndian.PutUint16(e.info[40:], tgt.dlid)
	e.put(b[hdrLen:])
	putHeader(b, opResolv, uint16(len(b)), tid)
	return b
}

func TestCheck(t *testing.T) {
	tgt, err := newTarget("ip:10.77.0.2", "fe80::10:3", "5", "ip:10.77.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tgt.check(reply(&tgt, 9), 9); err != nil {
		t.Errorf("right answer: %v", err)
	}
	for name, wrong := range map[string]func([]byte) []byte{
		"version": func(b []byte) []byte { b[0] = 2; return b },
		"opcode":  func(b []byte) []byte { b[1] = 2; return b },
		"status":  func(b []byte) []byte { b[2] = 6; return b },
		"tid":     func(b []byte) []byte { b[8]++; return b },
		"short":   func(b []byte) []byte { return b[:hdrLen] },
		"long":    func(b []byte) []byte { return append(b, make([]byte, epLen)...) },
		"type":    func(b []byte) []byte { b[hdrLen+4], b[hdrLen+5] = 2, 2; return b },
		"dgid":    func(b []byte) []byte { b[hdrLen+8+23]++; return b },
		"dlid":    func(b []byte) []byte { b[hdrLen+8+41]++; return b },
	} {
		if err := tgt.check(wrong(reply(&tgt, 9)), 9); err == nil {
			t.Errorf("wrong %s: passed", name)
		}
	}
}

func TestTargetsRefused(t *testing.T) {
	for _, line := range []string{"ip:10.0.0.1 fe80::1", "ip:10.0.0 fe80::1 1", "lid:70000 fe80::1 1", "gid:10 fe80::1 1",
		"port:1 fe80::1 1", "lid", "ip:10.0.0.1 fe80:: 70000", "ip:10.0.0.1 nothing 1", "name:" + strings.Repeat("n", 65) + " fe80::1 1"} {
		if list, err := readTargets(strings.NewReader(line), ""); err == nil {
			t.Errorf("%q: %+v", line, list)
		}
	}
	if _, err := readTargets(strings.NewReader("lid:1 fe80::1 1"), "ip:10.0.0.1"); err == nil {
		t.Error("an IP source for a path destination was accepted")
	}
	list, err := readTargets(strings.NewReader("# comment\n\nname:a fe80::1 1\n"), "name:b")
	if err != nil || len(list) != 1 || list[0].src == nil {
		t.Errorf("%+v, %v", list, err)
	}
}

// pieces is a stream that hands out a few bytes at a time.
type pieces struct{ b []byte }

func (p *pieces) Read(b []byte) (int, error) {
	n := copy(b[:min(7, len(b))], p.b)
	p.b = p.b[n:]
	return n, nil
}
func (p *pieces) Write(b []byte) (int, error) { return len(b), nil }
func (p *pieces) Close() error                { return nil }

func TestReaderCutsMessages(t *testing.T) {
	tgt, err := newTarget("ip:10.77.0.2", "fe80::10:3", "5", "ip:10.77.0.1")
	if err != nil {
		t.Fatal(err)
	}
	var r reader
	c := &pieces{slices.Concat(reply(&tgt, 1), reply(&tgt, 2), reply(&tgt, 3))}
	for tid := uint64(1); tid <= 3; tid++ {
		m, err := r.message(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := tgt.check(m, tid); err != nil {
			t.Error(err)
		}
		r.done(m)
	}
	for _, length := range []uint16{0, 15, maxMsg + 1, 0xffff} {
		b := reply(&tgt, 1)
		native.PutUint16(b[6:], length)
		if _, err := new(reader).message(&pieces{b}); err == nil {
			t.Errorf("length %d was accepted", length)
		}
	}
}

func TestQuantile(t *testing.T) {
	d := []time.Duration{1000, 2000, 3000, 4000}
	for p, want := range map[float64]float64{0: 1, .5: 3, .99: 4, 1: 4} {
		if got := quantile(d, p); got != want {
			t.Errorf("quantile %v: %v, want %v", p, got, want)
		}
	}
	if quantile(nil, .5) != 0 {
		t.Error("quantile of nothing")
	}
}
