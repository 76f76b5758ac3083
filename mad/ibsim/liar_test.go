// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// liar is a server on the simulator's socket names that says what a test wants.
// It is for what the real one never does.
type liar struct {
	t    *testing.T
	base string
	ctl  *net.UnixConn
	data *net.UnixConn // of client 0, once connected
	up   chan struct{} // closed with it

	// answer may change a right answer, replace it by several or by none.
	answer func(t controlType, good []byte) [][]byte
}

func startLiar(t *testing.T, answer func(controlType, []byte) [][]byte) *liar {
	t.Helper()
	l := &liar{t: t, base: fmt.Sprintf("acmd-liar-%d-%d", os.Getpid(), rand.Uint32()), answer: answer, up: make(chan struct{})}
	var err error
	l.ctl, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: localName(l.base, "ctl")})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); l.serve() }()
	t.Cleanup(func() {
		l.ctl.Close()
		<-ended
		if l.data != nil {
			l.data.Close()
		}
	})
	return l
}

func (l *liar) serve() {
	var b [controlSize]byte
	for {
		n, from, err := l.ctl.ReadFromUnix(b[:])
		if err != nil {
			return
		}
		client, typ, data, err := parseControl(b[:n])
		if err != nil {
			l.t.Errorf("client sent %x: %v", b[:n], err)
			return
		}
		switch typ {
		case ctlConnect:
			l.connectData(he.Uint32(data[:]))
			he.PutUint32(data[:], 0)
		case ctlGetNodeInfo:
			data = controlData{2: nodeTypeCA, 19: 0x10}
		case ctlGetPortInfo:
			data = controlData{17: 5, 19: 1, 28: 1, 31: 2, 32: 4, 35: 0x44, 36: 0x40}
		case ctlGetPKeys:
			data = controlData{0xff, 0xff}
		}
		from.Name += "\x00" // package syscall takes a NUL for the end of the name
		for _, a := range l.answer(typ, appendControl(nil, client, typ, &data, controlDataSize)) {
			l.ctl.WriteToUnix(a, from)
		}
	}
}

func (l *liar) connectData(id uint32) {
	if l.data != nil {
		l.data.Close()
	}
	var err error
	l.data, err = net.DialUnix("unixgram", &net.UnixAddr{Net: "unixgram", Name: localName(l.base, "out0")},
		&net.UnixAddr{Net: "unixgram", Name: localName(l.base, fmt.Sprintf("in%d", id))})
	if err != nil {
		l.t.Errorf("connect to the client's data socket: %v", err)
		return
	}
	select {
	case <-l.up:
	default:
		close(l.up)
	}
}

func honest(_ controlType, good []byte) [][]byte { return [][]byte{good} }

// on changes the answers to one type of message.
func on(typ controlType, f func([]byte) [][]byte) func(controlType, []byte) [][]byte {
	return func(t controlType, good []byte) [][]byte {
		if t == typ {
			return f(good)
		}
		return [][]byte{good}
	}
}

func (l *liar) config() Config {
	return Config{Base: l.base, Poison: true, Poll: time.Hour, control: madtest.AnswerTime}
}

func one(b []byte) [][]byte { return [][]byte{b} }

func TestLiesAtConnect(t *testing.T) {
	errorReply := func(good []byte) [][]byte { he.PutUint32(good[8:], uint32(ctlError)); return one(good) }
	// What is waited for in vain costs its time; all else is answered in time on any machine.
	const vain, enough = time.Second, madtest.AnswerTime
	for _, c := range []struct {
		name   string
		answer func(controlType, []byte) [][]byte
		want   string
		limit  time.Duration
	}{
		{"silence", on(ctlConnect, func([]byte) [][]byte { return nil }), "timeout", vain},
		{"wrong magic", on(ctlConnect, func(b []byte) [][]byte { b[0]++; return one(b) }), "magic", vain},
		{"short", on(ctlConnect, func(b []byte) [][]byte { return one(b[:79]) }), "79 bytes", vain},
		{"long", on(ctlConnect, func(b []byte) [][]byte { return one(append(b, 1, 2, 3)) }), "81 bytes", vain},
		{"empty", on(ctlConnect, func([]byte) [][]byte { return one(nil) }), "0 bytes", vain},
		{"too much data", on(ctlConnect, func(b []byte) [][]byte { he.PutUint32(b[12:], 1000); return one(b) }), "1000 bytes of data", vain},
		{"client number 10", on(ctlConnect, func(b []byte) [][]byte { he.PutUint32(b[16:], 10); return one(b) }), "client number 10", enough},
		{"client number -1", on(ctlConnect, func(b []byte) [][]byte { he.PutUint32(b[16:], 1<<32-1); return one(b) }), "client number 4294967295", enough},
		{"client number of nobody", on(ctlConnect, func(b []byte) [][]byte { he.PutUint32(b[16:], 3); return one(b) }), "connect data socket of client 3", enough},
		{"refused whatever is asked", on(ctlConnect, errorReply), "no free client slot", enough},
		{"another type", on(ctlConnect, func(b []byte) [][]byte { he.PutUint32(b[8:], uint32(ctlGetPKeys)); return one(b) }), "timeout", vain},
		{"no node info", on(ctlGetNodeInfo, func([]byte) [][]byte { return nil }), "get node info", vain},
		{"no port info", on(ctlGetPortInfo, func([]byte) [][]byte { return nil }), "get port info", vain},
		{"error for node info", on(ctlGetNodeInfo, errorReply), "get node info", vain},
	} {
		t.Run(c.name, func(t *testing.T) {
			madtest.CheckLeaks(t)
			cfg := startLiar(t, c.answer).config()
			cfg.control = c.limit
			f, err := New(cfg)
			if err == nil {
				f.Close()
				t.Fatal("attached")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, want %q in it", err, c.want)
			}
		})
	}
}

// Late, repeated and malformed answers before the right one are passed over.
func TestNoiseOnControl(t *testing.T) {
	madtest.CheckLeaks(t)
	l := startLiar(t, func(_ controlType, good []byte) [][]byte {
		late := append([]byte(nil), good...)
		he.PutUint32(late[8:], 99)
		bad := append([]byte(nil), good...)
		bad[0]++
		return [][]byte{bad, late, good[:10], good, late}
	})
	f, err := New(l.config())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := f.Devices()
	if err != nil || len(list) != 1 || list[0].Ports[0].LID != 5 || list[0].Ports[0].GIDs[0].GUID() != 0x11 {
		t.Errorf("%+v, %v", list, err)
	}
}

// opened attaches to an honest server and opens the port.
func (l *liar) opened(t *testing.T) (*Fabric, transport.Port) {
	t.Helper()
	f, err := New(l.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	p, err := f.Open(deviceName, portNumber)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	<-l.up
	return f, p
}

// What Open cannot make a port of does not stay attached in the port's role: nobody
// would read what the simulator sends there, and it stops for such a client.
func TestOpenFails(t *testing.T) {
	madtest.CheckLeaks(t)
	var connects, disconnects atomic.Int32
	l := startLiar(t, func(typ controlType, good []byte) [][]byte {
		switch typ {
		case ctlConnect:
			connects.Add(1)
		case ctlDisconnect:
			disconnects.Add(1)
		}
		return [][]byte{good}
	})
	cfg := l.config()
	cfg.ISSM = true
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.cfg.Slots = 1 << 17 // more than a ring has
	if p, err := f.Open(deviceName, portNumber); err == nil {
		p.Close()
		t.Fatal("opened")
	}
	if c, d := connects.Load(), disconnects.Load(); c != d {
		t.Errorf("%d clients connected, %d disconnected", c, d)
	}
	f.cfg.Slots = 8
	p, err := f.Open(deviceName, portNumber)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func packetOf(tid uint64) []byte {
	b := make([]byte, packetSize)
	binary.BigEndian.PutUint16(b[4:], 1)
	binary.BigEndian.PutUint32(b[12:], 1)
	m := (*mad.Packet)(b[packetHeaderSize:])
	m.Init(mad.ClassSA, 2, mad.MethodGetResp)
	m.SetTID(mad.TID(tid))
	return b
}

// TestLiesInData sends packets of every wrong size between right ones, in one
// batch: only the right ones arrive, complete and in order.
func TestLiesInData(t *testing.T) {
	madtest.CheckLeaks(t)
	l := startLiar(t, honest)
	f, p := l.opened(t)
	back := packetOf(99)
	binary.BigEndian.PutUint32(back[16:], mad.StatusTimeout)
	for _, b := range [][]byte{nil, packetOf(1), make([]byte, 287), make([]byte, 289), packetOf(2), back, packetOf(3)} {
		if _, err := l.data.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	slots := make([]*ring.Slot, 16)
	p.Ring().GetN(slots)
	n, err := p.Recv(slots, time.Now().Add(madtest.AnswerTime))
	if n != 3 || err != nil {
		t.Fatalf("received %d, %v", n, err)
	}
	for i, s := range slots[:n] {
		want := (*mad.Packet)(packetOf(uint64(i + 1))[packetHeaderSize:])
		if *s.MAD() != *want || s.Header().LID() != 1 || s.Header().Length() != ring.SlotSize {
			t.Errorf("message %d: %x %x", i, *s.Header(), *s.MAD())
		}
	}
	// Nothing but rubbish: Recv goes on waiting.
	for range 5 {
		l.data.Write([]byte("rubbish"))
	}
	begin := time.Now()
	if n, err := p.Recv(slots, begin.Add(50*time.Millisecond)); n != 0 || err != nil || time.Since(begin) < 50*time.Millisecond {
		t.Errorf("received %d, %v after %v", n, err, time.Since(begin))
	}
	if s := f.Stats(); s.Received != 3 || s.Dropped != 9 {
		t.Errorf("counters %+v", s)
	}
	for _, s := range slots {
		s.Release()
	}
}

// FuzzLiesInData lets a server send any datagram to an open port: Recv hands out
// well-formed slots or nothing.
func FuzzLiesInData(f *testing.F) {
	f.Add(packetOf(1))
	f.Add([]byte{})
	f.Add(make([]byte, packetSize+1))
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	r, err := ring.New(4, true)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var in recvBatch
		var c counters
		in.init()
		for _, d := range [][]byte{b, packetOf(7)} {
			if err := unix.Send(fds[1], d[:min(len(d), 4096)], 0); err != nil {
				t.Fatal(err)
			}
		}
		slots := make([]*ring.Slot, 3)
		r.GetN(slots)
		n, err := in.recv(fds[0], slots, &c)
		if err != nil || n < 1 || c.received.Load() != uint64(n) || c.dropped.Load() != uint64(2-n) {
			t.Fatalf("received %d, %v, dropped %d", n, err, c.dropped.Load())
		}
		if last := slots[n-1]; last.MAD().TID() != 7 || last.Header().Status() != 0 {
			t.Fatalf("the right packet did not come through: %x", last.Bytes())
		}
		for _, s := range slots {
			s.Release()
		}
	})
}

// TestServerThatDoesNotRead fills its queue: Send gives up, and says why.
func TestServerThatDoesNotRead(t *testing.T) {
	madtest.CheckLeaks(t)
	_, p := startLiar(t, honest).opened(t)
	slots := make([]*ring.Slot, 64)
	p.Ring().GetN(slots)
	for _, s := range slots {
		*s.Header() = mad.UserHeader{}
		s.MAD().Init(mad.ClassSA, 2, mad.MethodGet)
	}
	total := 0
	var err error
	for err == nil && total < 1<<16 {
		var n int
		n, err = p.Send(slots)
		total += n
	}
	if !errors.Is(err, unix.EAGAIN) || errors.Is(err, transport.ErrGone) {
		t.Errorf("after %d packets: %v, want EAGAIN", total, err)
	}
	// Close does not wait for it.
	done := make(chan error, 1)
	go func() { _, err := p.Send(slots); done <- err }()
	p.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.EAGAIN) {
		t.Errorf("send on a port that is closed meanwhile: %v", err)
	}
	for _, s := range slots {
		s.Release()
	}
}

// TestRefusedSlot: what the simulator would silently discard is refused in its
// turn, and what was before it goes out.
func TestRefusedSlot(t *testing.T) {
	madtest.CheckLeaks(t)
	l := startLiar(t, honest)
	_, p := l.opened(t)
	slots := make([]*ring.Slot, 3)
	p.Ring().GetN(slots)
	for i, s := range slots {
		*s.Header() = mad.UserHeader{}
		s.MAD().Init(mad.ClassSA, 2, mad.MethodGet)
		s.MAD().SetTID(mad.TID(i))
	}
	slots[1].MAD()[2] = 3
	if n, err := p.Send(slots); n != 1 || err == nil || !strings.Contains(err.Error(), "class version 3") {
		t.Errorf("sent %d, %v", n, err)
	}
	b := make([]byte, 2*packetSize)
	l.data.SetReadDeadline(time.Now().Add(madtest.AnswerTime))
	if n, err := l.data.Read(b); n != packetSize || err != nil || *(*mad.Packet)(b[packetHeaderSize:packetSize]) != *slots[0].MAD() {
		t.Errorf("server read %d, %v: %x", n, err, b[:n])
	}
	for _, s := range slots {
		s.Release()
	}
}

// TestNoAllocations: a query costs the garbage collector nothing.
func TestNoAllocations(t *testing.T) {
	l := startLiar(t, honest)
	_, p := l.opened(t)
	go func() {
		var b [packetSize]byte
		for {
			n, err := l.data.Read(b[:])
			if err != nil {
				return
			}
			l.data.Write(b[:n])
		}
	}()
	slots := make([]*ring.Slot, 1)
	p.Ring().GetN(slots)
	if n := testing.AllocsPerRun(200, func() {
		*slots[0].Header() = mad.UserHeader{}
		slots[0].MAD().Init(mad.ClassSA, 2, mad.MethodGet)
		if n, err := p.Send(slots); n != 1 {
			t.Fatal(err)
		}
		if n, err := p.Recv(slots, time.Now().Add(madtest.AnswerTime)); n != 1 {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per query", n)
	}
	slots[0].Release()
}

// TestCloseDrains: a server that must hand over packets before it sees DISCONNECT
// finds room for them.
func TestCloseDrains(t *testing.T) {
	madtest.CheckLeaks(t)
	var handed atomic.Int32
	self := make(chan *liar, 1)
	l := startLiar(t, on(ctlDisconnect, func(good []byte) [][]byte {
		l := <-self
		l.data.SetWriteDeadline(time.Now().Add(madtest.AnswerTime))
		for range 2000 { // the socket holds some 280
			if _, err := l.data.Write(packetOf(1)); err != nil {
				l.t.Errorf("packet %d: %v", handed.Load(), err)
				break
			}
			handed.Add(1)
		}
		return one(good)
	}))
	self <- l
	f, err := New(l.config())
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Open(deviceName, portNumber)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	f.Close()
	if n := handed.Load(); n != 2000 {
		t.Errorf("%d packets were taken", n)
	}
}
