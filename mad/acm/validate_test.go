// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acm

import (
	"errors"
	"testing"

	"acmd/mad"
)

// field case 32: what arrives on the group is refused for a reason that can be
// counted.
func TestValidate(t *testing.T) {
	request := func(p *mad.Packet) {
		if err := InitRequest(p, 9, TypeName, []byte("nodeD"), TypeName, []byte("nodeC"), defaultGroup); err != nil {
			t.Fatal(err)
		}
	}
	response := func(p *mad.Packet) { InitResponse(p, 9, defaultGroup) }
	at := func(i int, v byte) func(*mad.Packet) { return func(p *mad.Packet) { p[i] = v } }
	for _, c := range []struct {
		name string
		init func(*mad.Packet)
		then func(*mad.Packet)
		n    int
		want Reason // 0: taken
	}{
		{"request", request, at(18, 1), 256, 0},
		{"response", response, at(4, 0), 256, 0},
		{"longer than a packet", request, at(18, 1), 300, 0},
		{"any lengths", request, func(p *mad.Packet) { p[17], p[19] = 0, 255 }, 256, 0},
		{"every type", request, func(p *mad.Packet) { p[16], p[18] = TypeLID, TypeGID }, 256, 0},
		{"response that tells of a failure", response, func(p *mad.Packet) { p.SetStatus(0x0300); p[20] = 0 }, 256, 0},
		{"more groups than fit", request, at(20, 10), 256, 0},
		{"255 groups", request, at(20, 255), 256, 0},

		{"nothing", request, at(18, 1), 0, RefusedLength},
		{"negative", request, at(18, 1), -64, RefusedLength},
		{"only a header", request, at(18, 1), 24, RefusedLength},
		{"one byte short", response, at(4, 0), 255, RefusedLength},
		{"class of the SA", request, at(1, 0x03), 256, RefusedClass},
		{"base version", request, at(0, 2), 256, RefusedVersion},
		{"class version", response, at(2, 9), 256, RefusedVersion},
		{"ack", request, at(6, 0x80), 256, RefusedControl},
		{"control 0", response, at(7, 0), 256, RefusedControl},
		{"Set", request, at(3, 0x02), 256, RefusedMethod},
		{"response to Set", response, at(3, 0x82), 256, RefusedMethod},
		{"method 0x80", response, at(3, 0x80), 256, RefusedMethod},
		{"source type 0", request, at(18, 0), 256, RefusedSrcType},
		{"source type 6", request, at(18, 6), 256, RefusedSrcType},
		{"destination type 0", request, at(16, 0), 256, RefusedDestType},
		{"destination type 255", request, at(16, 255), 256, RefusedDestType},
		{"request without a group", request, at(20, 0), 256, RefusedGroups},
		{"response without a group", response, at(20, 0), 256, RefusedGroups},
	} {
		p := dirty()
		c.init(p)
		c.then(p)
		err := Validate(p, c.n)
		var got Reason
		if err != nil && !errors.As(err, &got) {
			t.Errorf("%s: %v is no Reason", c.name, err)
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// Counts beyond what fits are clamped: no group lies outside of the packet.
func TestGIDCount(t *testing.T) {
	var p mad.Packet
	r := View(&p)
	for n := range 256 {
		r[4] = uint8(n)
		if got, want := r.GIDCount(), min(n, 6); got != want {
			t.Errorf("count %d read as %d, want %d", n, got, want)
		}
	}
	for i := range MaxGIDs {
		_ = r.GID(i)
	}
}

// Each reason has a label of its own and is an index below NumReasons.
func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for r := RefusedLength; r <= RefusedGroups; r++ {
		label := r.String()
		if label == "" || label == "unknown" || seen[label] {
			t.Errorf("reason %d has label %q", r, label)
		}
		seen[label] = true
		if want := "acm packet refused: " + label; r.Error() != want {
			t.Errorf("reason %d: %q, want %q", r, r.Error(), want)
		}
	}
	if len(seen) != NumReasons-1 {
		t.Errorf("%d reasons, want %d", len(seen), NumReasons-1)
	}
	if got := Reason(NumReasons).String(); got != "unknown" {
		t.Errorf("a reason that is none has label %q", got)
	}
}

// No packet makes the view read outside, and a valid one keeps its promises.
func FuzzResolve(f *testing.F) {
	var p mad.Packet
	if err := InitRequest(&p, 9, TypeName, []byte("nodeD"), TypeIPv4, []byte{10, 0, 0, 7}, defaultGroup, defaultGroup); err != nil {
		f.Fatal(err)
	}
	f.Add(p[:], 256)
	p[20] = 10
	f.Add(p[:], 256)
	InitResponse(&p, 9, defaultGroup)
	f.Add(p[:], 256)
	f.Add(p[:24], 24)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		var p mad.Packet
		copy(p[:], b)
		before := p
		err := Validate(&p, n)
		r := View(&p)
		groups := r.GIDCount()
		if groups < 0 || groups > MaxGIDs {
			t.Fatalf("%d groups", groups)
		}
		for i := range groups {
			_ = r.GID(i) // inside the packet
		}
		if p != before {
			t.Fatal("looking at a packet changed it")
		}
		if err != nil {
			var reason Reason
			if !errors.As(err, &reason) || reason == 0 || int(reason) >= NumReasons {
				t.Fatalf("%v is no Reason", err)
			}
			return
		}
		if n < mad.PacketSize || p.Class() != mad.ClassACM || p.Specific() != ControlResolve {
			t.Fatalf("%d bytes, class %#x, control %#x were taken", n, p.Class(), p.Specific())
		}
		if !p.IsResponse() && (!validType(r.SrcType()) || !validType(r.DestType()) || groups == 0) {
			t.Fatalf("request with types %d, %d and %d groups was taken", r.DestType(), r.SrcType(), groups)
		}
		if p.IsResponse() && p.Status() == 0 && groups == 0 {
			t.Fatal("answer without a group was taken")
		}
	})
}
