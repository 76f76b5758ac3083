// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"acmd/mad"
	"acmd/mad/ring"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// littleEndian skips golden bytes of host order where that is another one.
func littleEndian(t *testing.T) {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("golden bytes are those of a little-endian host")
	}
}

// The numbers of the ioctls follow from magic, direction and size.
func TestIoctlNumbers(t *testing.T) {
	const magic, write, read = 0x1b << 8, 1 << 30, 2 << 30
	for name, c := range map[string][2]uint{
		"UNREGISTER_AGENT": {ioctlUnregisterAgent, write | 4<<16 | magic | 2},
		"ENABLE_PKEY":      {ioctlEnablePKey, magic | 3},
		"REGISTER_AGENT2":  {ioctlRegisterAgent2, write | read | uint(len(registerRequest{}))<<16 | magic | 4},
	} {
		if c[0] != c[1] {
			t.Errorf("%s is 0x%x, want 0x%x", name, c[0], c[1])
		}
	}
}

// struct ib_user_mad_reg_req2, 40 bytes, of a little-endian host.
func TestRegisterRequestGolden(t *testing.T) {
	littleEndian(t)
	for name, c := range map[string]struct {
		got  registerRequest
		want string
	}{
		"SA with Reports and the kernel's RMPP": {newRegisterRequest(1, mad.ClassSA, mad.SAClassVersion, 1, mad.MethodReport),
			"00000000 01000000 03 02 0000 00000000 4000000000000000 0000000000000000 00000000 01 000000"},
		"SA, answers only": {newRegisterRequest(1, mad.ClassSA, mad.SAClassVersion, 1),
			"00000000 01000000 03 02 0000 00000000 0000000000000000 0000000000000000 00000000 01 000000"},
		"ACM, answers only": {newRegisterRequest(1, mad.ClassACM, mad.ACMClassVersion, 0),
			"00000000 01000000 2c 01 0000 00000000 0000000000000000 0000000000000000 00000000 00 000000"},
		"SMPs on QP0": {newRegisterRequest(0, mad.ClassSubnDir, 1, 0),
			"00000000 00000000 81 01 0000 00000000 0000000000000000 0000000000000000 00000000 00 000000"},
		"methods in both words": {newRegisterRequest(1, 0x50, 8, 0, 0, 63, 64, 127),
			"00000000 01000000 50 08 0000 00000000 0100000000000080 0100000000000080 00000000 00 000000"},
	} {
		if want := unhex(t, c.want); !bytes.Equal(c.got[:], want) {
			t.Errorf("%s:\ngot  %x\nwant %x", name, c.got, want)
		}
	}
	r := registerRequest(unhex(t, "05000000 01000000 03020000 00000000 4000000000000000 0000000000000000 00000000 01000000"))
	if r.id() != 5 {
		t.Errorf("agent %d, want 5", r.id())
	}
}

// A descriptor that is no umad device refuses all, and what it says is passed on.
func TestRegisterRefused(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	if _, _, err := registerSA(fds[0]); !errors.Is(err, unix.ENOTTY) || !strings.Contains(err.Error(), "class 0x03") {
		t.Errorf("register on a pipe: %v", err)
	}
}

// The header of a query to the SM at LID 1 through agent 2.
func TestFrameGolden(t *testing.T) {
	littleEndian(t)
	r, err := ring.New(1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := r.Get()
	defer s.Release()
	*s.Header() = mad.UserHeader{}
	s.Header().SetTimeoutMS(2000)
	s.Header().SetRetries(2)
	s.Header().SetQPN(mad.QP1)
	s.Header().SetQKey(mad.WellKnownQKey)
	s.Header().SetLID(1)
	s.MAD().Init(mad.ClassSA, mad.SAClassVersion, mad.MethodGet)
	p := &Port{name: "umad0", saAgent: 2, acmAgent: 7}
	if err := p.address(s); err != nil {
		t.Fatal(err)
	}
	want := append(unhex(t, `02000000 00000000 d0070000 02000000
		00000000 00000001 80010000 00010000`), make([]byte, 32)...)
	want = append(want, unhex(t, "01 03 02 01")...)
	if got := s.Bytes(); !bytes.Equal(got[:len(want)], want) || len(got) != 320 {
		t.Errorf("got  %x\nwant %x", got[:len(want)], want)
	}
	s.MAD().Init(mad.ClassACM, mad.ACMClassVersion, mad.MethodGet)
	if err := p.address(s); err != nil || s.Header().Agent() != 7 {
		t.Errorf("agent %d, %v; want that of the ACM class", s.Header().Agent(), err)
	}
}

// A directed-route SMP of no hops: PortInfo of the port it goes in by.
func TestPortInfoRequestGolden(t *testing.T) {
	littleEndian(t)
	frame := bytes.Repeat([]byte{0xee}, ring.SlotSize)
	portInfoRequest(frame, 3, 0x11223344)
	want := make([]byte, ring.SlotSize)
	copy(want, unhex(t, `03000000 00000000 2c010000 00000000
		00000000 00000000 00000000 ffff0000`))
	copy(want[64:], unhex(t, `01 81 01 01 0000 00 00 0000000011223344 0015 0000 00000000
		0000000000000000 ffff ffff`))
	if !bytes.Equal(frame, want) {
		t.Errorf("got  %x\nwant %x", frame[:104], want[:104])
	}
}

// portInfoReply is the answer to the above, as the kernel hands it over.
func portInfoReply(mtu, subnetTimeout uint8) []byte {
	frame := make([]byte, ring.SlotSize)
	portInfoRequest(frame, 3, 0x11223344)
	m := (*mad.Packet)(frame[64:])
	m.SetTID(0x0000000511223344) // the upper half is the kernel's
	m.SetMethod(mad.MethodGetResp)
	m.SetStatus(0x8000) // the direction bit
	m[64+36] = mtu<<4 | 9
	m[64+51] = 0xe0 | subnetTimeout
	return frame
}

func TestPortInfoAnswer(t *testing.T) {
	const tid = 0x11223344
	set := func(f func(h *mad.UserHeader, m *mad.Packet)) []byte {
		b := portInfoReply(5, 18)
		f((*mad.UserHeader)(b), (*mad.Packet)(b[64:]))
		return b
	}
	info, ok, err := portInfoAnswer(portInfoReply(5, 18), tid)
	if !ok || err != nil || info.mtu != 5 || info.subnetTimeout != 18 {
		t.Errorf("%+v, %v, %v; want MTU 5, time-out 18", info, ok, err)
	}
	for name, c := range map[string]struct {
		frame []byte
		err   bool
	}{
		"another TID":       {set(func(_ *mad.UserHeader, m *mad.Packet) { m.SetTID(0x11223345) }), false},
		"another attribute": {set(func(_ *mad.UserHeader, m *mad.Packet) { m.SetAttrID(0x11) }), false},
		"timed out":         {set(func(h *mad.UserHeader, m *mad.Packet) { h.SetStatus(110); m.SetMethod(mad.MethodGet) }), true},
		"a request":         {set(func(_ *mad.UserHeader, m *mad.Packet) { m.SetMethod(mad.MethodGet) }), true},
		"refused":           {set(func(_ *mad.UserHeader, m *mad.Packet) { m.SetStatus(0x801c) }), true},
	} {
		if info, ok, err := portInfoAnswer(c.frame, tid); ok || (err != nil) != c.err || info != (smpInfo{}) {
			t.Errorf("%s: %+v, %v, %v; want an error: %v", name, info, ok, err, c.err)
		}
	}
	if _, _, err := portInfoAnswer(set(func(h *mad.UserHeader, _ *mad.Packet) { h.SetStatus(110) }), tid); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("timed out: %v", err)
	}
}

// settle: how many messages are in what readv(2) returned, and where slots are
// cleared.
func TestSettle(t *testing.T) {
	r, err := ring.New(4, true)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rapid.Check(t, func(t *rapid.T) {
		slots := make([]*ring.Slot, 4)
		r.GetN(slots)
		defer func() {
			for _, s := range slots {
				s.Release()
			}
		}()
		for _, s := range slots {
			b := s.Bytes()
			for i := range b {
				b[i] = 0x5a
			}
		}
		full := rapid.IntRange(0, len(slots)-1).Draw(t, "full")
		last := rapid.IntRange(0, ring.SlotSize-1).Draw(t, "last")
		want := full
		if last >= 88 { // header and MAD header
			want++
		}
		if n := settle(slots, full*ring.SlotSize+last); n != want {
			t.Fatalf("%d bytes: %d messages, want %d", full*ring.SlotSize+last, n, want)
		}
		for i, s := range slots {
			for j, b := range s.Bytes() {
				cleared := i == full && last >= 88 && j >= last
				if cleared != (b == 0) {
					t.Fatalf("%d bytes: slot %d has %#x at %d", full*ring.SlotSize+last, i, b, j)
				}
			}
		}
	})
}

// Whatever comes back on the descriptor of the SMP, looking at it neither fails
// nor takes something else for the answer.
func FuzzPortInfoAnswer(f *testing.F) {
	f.Add(portInfoReply(5, 18), uint32(0x11223344))
	f.Add(make([]byte, ring.SlotSize), uint32(0))
	f.Add(portInfoReply(0, 31), uint32(1))
	f.Fuzz(func(t *testing.T, b []byte, tid uint32) {
		var frame [ring.SlotSize]byte
		copy(frame[:], b)
		info, ok, err := portInfoAnswer(frame[:], tid)
		if ok && err != nil || !ok && info != (smpInfo{}) {
			t.Fatalf("%+v, %v, %v", info, ok, err)
		}
		if ok && (binary.BigEndian.Uint32(frame[76:]) != tid || frame[67] != mad.MethodGetResp || info.mtu > 15 || info.subnetTimeout > 31) {
			t.Errorf("took %x for the answer to %#x: %+v", frame[64:88], tid, info)
		}
	})
}
