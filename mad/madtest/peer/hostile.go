// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"acmd/mad"
	"acmd/mad/acm"

	"golang.org/x/sys/unix"
)

// Victim is the daemon that hostile neighbours are after.
type Victim struct {
	LID   mad.LID
	QPN   mad.QPN
	GID   mad.GID
	Group mad.GID
	Addr  netip.Addr // IPv4, one of its own
}

// hostile are datagrams that a neighbour can send and that must lead to nothing
// but a count, or to one answer. Each starts from a request for the victim's
// address with a forged source.
var hostile = []struct {
	name    string
	unicast bool
	spoil   func(v *Victim, m *mad.Packet) []byte
}{
	{"method", false, func(_ *Victim, m *mad.Packet) []byte { m[3] = 0x7a; return m[:] }},
	{"base version", false, func(_ *Victim, m *mad.Packet) []byte { m[0] = 2; return m[:] }},
	{"class version", false, func(_ *Victim, m *mad.Packet) []byte { m[2] = 7; return m[:] }},
	{"class", false, func(_ *Victim, m *mad.Packet) []byte { m[1] = 0x2d; return m[:] }},
	{"answer of an SA", true, func(_ *Victim, m *mad.Packet) []byte {
		m[1], m[2], m[3], m[17] = mad.ClassSA, mad.SAClassVersion, mad.MethodGetResp, 0x35
		return m[:]
	}},
	{"control", false, func(_ *Victim, m *mad.Packet) []byte { m[6] = 0x80; return m[:] }},
	{"source type", false, func(_ *Victim, m *mad.Packet) []byte { m[18] = 9; return m[:] }},
	{"destination type", false, func(_ *Victim, m *mad.Packet) []byte { m[16] = 0; return m[:] }},
	{"no group", false, func(_ *Victim, m *mad.Packet) []byte { m[20] = 0; return m[:] }},
	{"255 groups", false, func(_ *Victim, m *mad.Packet) []byte {
		m[20] = 255
		clear(m[152:])
		return m[:]
	}},
	{"short", false, func(_ *Victim, m *mad.Packet) []byte { return m[:24+rand.IntN(232)] }},
	{"empty", false, func(_ *Victim, m *mad.Packet) []byte { return nil }},
	{"long", false, func(_ *Victim, m *mad.Packet) []byte { return append(m[:], make([]byte, 64)...) }},
	{"destination of bytes", false, func(_ *Victim, m *mad.Packet) []byte { m[16+8+63] = 1; return m[:] }},
	{"answer that nobody asked for", true, func(v *Victim, m *mad.Packet) []byte {
		acm.InitResponse(m, mad.TID(rand.Uint64()), v.Group)
		return m[:]
	}},
	{"victim's address claimed", false, func(v *Victim, m *mad.Packet) []byte {
		a := v.Addr.As4()
		copy(acm.View(m).Src()[:], a[:])
		acm.View(m).Dest()[1]++
		return m[:]
	}},
	{"request for somebody else", false, func(_ *Victim, m *mad.Packet) []byte {
		acm.View(m).Dest()[1]++
		return m[:]
	}},
	{"request", false, func(_ *Victim, m *mad.Packet) []byte { return m[:] }},
}

// HostileKinds lists what Harass sends, in turn.
func HostileKinds() (names []string) {
	for _, h := range hostile {
		names = append(names, h.name)
	}
	return names
}

// harassEvery is how often Harass sends what has fallen due: about as much as the
// receiver's socket takes.
const harassEvery = time.Millisecond

// Harass sends hostile datagrams to v at a rate per second until ctx ends, each
// with sender, source address and TID forged at random, and returns how many. It
// stands for other nodes, which would not use this one's processors: it wakes up
// once for several datagrams, on a blocking socket of its own, and waits without
// telling Go's scheduler, whose monitor would wake twice as often.
func (u *UD) Harass(t testing.TB, ctx context.Context, v Victim, rate int) (sent int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer unix.Close(fd)
	// A victim that does not read is no reason to wait for ever.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		t.Error(err)
		return 0
	}
	var to [unix.SizeofSockaddrUnix]byte
	binary.NativeEndian.PutUint16(to[:], unix.AF_UNIX)
	if path := filepath.Join(u.dir, queueName(v.LID, v.QPN)); copy(to[2:len(to)-1], path) < len(path) {
		t.Errorf("%s is too long for a socket", path)
		return 0
	}
	forged := *u
	dst := v.Addr.As4()
	begin := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		if due := time.Duration(i) * time.Second / time.Duration(rate); due > time.Since(begin) {
			nap := unix.NsecToTimespec(int64(harassEvery))
			// A signal makes it shorter, no more.
			unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&nap)), 0, 0)
		}
		var src [4]byte
		binary.BigEndian.PutUint32(src[:], rand.Uint32()|1)
		forged.LID = mad.LID(1 + rand.IntN(0xbfff))
		forged.QPN = mad.QPN(2 + rand.IntN(0xfffffc))
		forged.GID = mad.MakeGID(0xfe80<<48, mad.GUID(rand.Uint64()|1))
		var m mad.Packet
		if err := acm.InitRequest(&m, mad.TID(rand.Uint64()), acm.TypeIPv4, dst[:], acm.TypeIPv4, src[:], v.Group); err != nil {
			t.Error(err)
			return sent
		}
		h := &hostile[i%len(hostile)]
		data := h.spoil(&v, &m)
		// To one member of the group only, also what is multicast: the others are
		// not to be harassed.
		dlid, dqpn, dgid := mad.LID(0xc001), mad.MulticastQPN, v.Group
		if h.unicast {
			dlid, dqpn, dgid = v.LID, v.QPN, v.GID
		}
		b := forged.packet(data, dlid, dqpn, dgid)
		// What fails is lost, as a datagram may be.
		unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0,
			uintptr(unsafe.Pointer(&to)), uintptr(len(to)))
		sent++
	}
	return sent
}
