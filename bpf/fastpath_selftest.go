// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// selfTestTime bounds a self-test. It takes milliseconds.
const selfTestTime = 10 * time.Second

// The messages of the self-test: what clients of the daemon send, and replies
// whose path record says who gave them.
const (
	testHeader = 16
	testRecord = 72
	testSlot   = 5 // of the source
	testGen    = 9
	testChosen = 3 // generation of sources

	kindIPv4 = 2
	kindPath = 0x10

	byDaemon = 0xd0
	byKernel = 0xb0
	offBy    = testHeader + 8 + 57 // preference, in the path record
)

// testShape is one kind of request.
type testShape struct {
	name   string
	source bool
	kind   uint8
	reply  int    // bytes
	slot   uint32 // of the mirrored answer
}

var testShapes = []testShape{
	{"path request", false, kindPath, 88, 0},
	{"destination", false, kindIPv4, 160, 1},
	{"source and destination", true, kindIPv4, 88, 2},
}

// key is that of the destination that every request of a shape names; away is
// one that is not mirrored.
func (s *testShape) key(away bool) FastKey {
	k := FastKey{Slot: FastNoSource, Kind: s.kind}
	if s.source {
		k.Slot = testSlot
	}
	k.Addr[0], k.Addr[3] = 10, 2
	if s.kind == kindPath {
		k.Addr[8], k.Addr[9], k.Addr[23] = 0xfe, 0x80, 2
	}
	if away {
		k.Addr[3]++
	}
	return k
}

var testSource = FastKey{Kind: kindIPv4, Addr: [64]byte{10, 0, 0, 1}}

func appendTestRecord(b []byte, flags uint32, kind uint8, info []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, flags)
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	return append(append(b, 0, 0), info...)
}

func (s *testShape) request(tid uint64, away bool) []byte {
	b := append(make([]byte, 0, 160), 1, 1, 0, 0, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint64(b, tid)
	if s.source {
		b = appendTestRecord(b, 1, testSource.Kind, testSource.Addr[:])
	}
	k, flags := s.key(away), uint32(2)
	if s.kind == kindPath {
		flags = 0
	}
	b = appendTestRecord(b, flags, k.Kind, k.Addr[:])
	binary.NativeEndian.PutUint16(b[6:], uint16(len(b)))
	return b
}

// records are the reply behind its header.
func (s *testShape) records(by byte) (r [144]byte) {
	var info [64]byte
	info[offBy-testHeader-8] = by
	b := appendTestRecord(r[:0], 0x2b, kindPath, info[:])
	if s.reply == 160 {
		appendTestRecord(b, 1, testSource.Kind, testSource.Addr[:])
	}
	return r
}

// answer is the reply to a request of any shape.
func (s *testShape) answer(tid uint64, by byte) []byte {
	b := append(make([]byte, 0, 160), 1, 1, 0, 0, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(b[6:], uint16(s.reply))
	b = binary.NativeEndian.AppendUint64(b, tid)
	r := s.records(by)
	return append(b, r[:s.reply-testHeader]...)
}

func shapeOf(request []byte) *testShape {
	switch {
	case len(request) == 160:
		return &testShapes[2]
	case request[20] == kindPath:
		return &testShapes[0]
	}
	return &testShapes[1]
}

// testServer stands for the daemon. It answers a destination that is not mirrored
// once it gets a word.
type testServer struct {
	ln   net.Listener
	fast *Fast
	gate chan struct{}
	life time.Duration // of a connection
}

func (s *testServer) serve(done chan<- error) {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			done <- nil
			return
		}
		if err := s.client(c); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			s.ln.Close()
			done <- err
			return
		}
	}
}

// client serves one connection until it ends.
func (s *testServer) client(c net.Conn) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(s.life))
	slot := s.fast.Conn(portOf(c.RemoteAddr()))
	slot.Take()
	defer slot.Release()
	var answered, replied uint64
	for {
		b := make([]byte, testHeader, 160)
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		n := int(binary.NativeEndian.Uint16(b[6:]))
		if n != 88 && n != 160 {
			return fmt.Errorf("a request of %d bytes came through", n)
		}
		b = b[:n]
		if _, err := io.ReadFull(c, b[testHeader:]); err != nil {
			return err
		}
		shape := shapeOf(b)
		if away := shape.key(true); bytes.HasSuffix(b, away.Addr[:]) {
			<-s.gate
		}
		reply := shape.answer(binary.NativeEndian.Uint64(b[8:]), byDaemon)
		answered += uint64(n)
		replied += uint64(len(reply))
		slot.Publish(answered, replied)
		if _, err := c.Write(reply); err != nil {
			return err
		}
	}
}

func portOf(a net.Addr) uint16 { return uint16(a.(*net.TCPAddr).Port) }

// selfTest loads a plan for a listener of its own and tries what the fast path
// must do and what it must not. Without an error all of it is as it should be, and
// the test stays loaded for [fastTest.prove] until it is closed.
func selfTest(cfg FastConfig, plan FastPlan) (*fastTest, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("self-test: %w", err)
	}
	f, err := openFast(FastConfig{Port: portOf(ln.Addr()), All: cfg.All, Cgroup: cfg.Cgroup, Paths: 64, Conns: 64}, plan)
	if err != nil {
		ln.Close()
		return nil, err
	}
	t := &fastTest{testServer: testServer{ln, f, make(chan struct{}), selfTestTime}, served: make(chan error, 1)}
	go t.serve(t.served)
	if err := t.run(); err != nil {
		return nil, fmt.Errorf("self-test: %w", errors.Join(err, t.close()))
	}
	return t, nil
}

// fastTest is the client's side. A failed step leaves its error in err, and what
// follows does nothing.
type fastTest struct {
	testServer
	served chan error
	conn   net.Conn
	tid    uint64
	err    error
}

func (t *fastTest) hangUp() {
	if t.conn != nil {
		t.conn.Close()
		t.conn = nil
	}
}

func (t *fastTest) close() error {
	t.ln.Close()
	close(t.gate)
	t.hangUp()
	return errors.Join(<-t.served, t.fast.Close())
}

// prove repeats what needs the kernel's leave each time: it mirrors a path, puts
// another client onto the map, and has the kernel answer it.
func (t *fastTest) prove() error {
	t.err = nil
	s := &testShapes[0]
	t.mirror(s, math.MaxUint64)
	t.dial()
	t.pieces(s) // its server has accepted it by then, however it got onto the map
	sent := uint64(2 * 88)
	if t.fast.plan.All {
		sent = 88 // its first request ended in the kernel
	}
	t.insert(sent)
	t.ask(s, byKernel, "once more")
	t.hangUp() // the server has no patience
	return t.err
}

func (t *fastTest) fail(format string, a ...any) {
	if t.err == nil {
		t.err = fmt.Errorf(format, a...)
	}
}

func (t *fastTest) run() error {
	t.fast.SetOn(true)
	t.fast.Raise(testGen)
	t.fast.SetSources(testChosen)
	if err := t.fast.PutSource(&testSource, testSlot); err != nil {
		return err
	}
	for i := range testShapes {
		t.mirror(&testShapes[i], math.MaxUint64)
	}
	t.dial()
	for i := range testShapes {
		s := &testShapes[i]
		t.ask(s, byKernel, "a mirrored path is not answered")
		t.pieces(s)
		t.unreadSecond(s)
		t.order(s)
		t.giveUp(s)
		t.switches(s)
	}
	t.closeUnread()
	if t.err != nil {
		return t.err
	}
	return t.prove() // what the library tries of the kernel when it is first used, it tries now
}

func (t *fastTest) mirror(s *testShape, expires uint64) {
	if t.err != nil {
		return
	}
	p := FastPath{Expires: expires, Gen: t.fast.Generation(testGen), GenSlot: testGen, Sources: testChosen, Endpoint: 1,
		Version: t.fast.Version(s.slot), UseSlot: s.slot,
		Len: uint16(s.reply), Reply: s.records(byKernel)}
	if err := t.fast.PutPaths([]FastKey{s.key(false)}, []FastPath{p}); err != nil {
		t.fail("%w", err)
	}
}

// dial connects and gets the connection onto the map.
func (t *fastTest) dial() {
	if t.err != nil {
		return
	}
	t.hangUp()
	if t.conn, t.err = net.Dial("tcp4", t.ln.Addr().String()); t.err != nil {
		t.conn = nil // of the interface's nil, not of a connection's
		return
	}
	t.conn.SetDeadline(time.Now().Add(selfTestTime))
	first := byte(byDaemon)
	if t.fast.plan.All {
		first = byKernel
	}
	t.ask(&testShapes[0], first, "the first request of a connection")
	if !t.fast.plan.All {
		t.insert(88)
	}
}

// insert puts a connection that has sent so many bytes to the daemon onto the map.
func (t *fastTest) insert(want uint64) {
	if t.err != nil {
		return
	}
	sent, err := t.fast.insertOne(portOf(t.conn.LocalAddr()), selfTestTime)
	if err != nil {
		t.fail("%w", err)
	} else if sent != want {
		t.fail("a client that sent %d bytes to the daemon is said to have sent %d", want, sent)
	}
}

// insertOne is Insert for one client, which is asked for again while it is busy.
func (f *Fast) insertOne(port uint16, patience time.Duration) (sent uint64, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if rerr := f.Insert([]uint16{port}, func(_ uint16, n uint64, e error) { sent, err = n, e }); rerr != nil {
			return 0, rerr
		}
		if !errors.Is(err, ErrFastBusy) || time.Now().After(end) {
			return sent, err
		}
	}
}

func (t *fastTest) send(b []byte) {
	if t.err != nil {
		return
	}
	if _, err := t.conn.Write(b); err != nil {
		t.fail("send: %w", err)
	}
}

// reply reads one, which has to be what the kernel or the daemon gives, and
// returns who gave it.
func (t *fastTest) reply(s *testShape, tid uint64) byte {
	if t.err != nil {
		return 0
	}
	b := make([]byte, s.reply)
	if _, err := io.ReadFull(t.conn, b); err != nil {
		t.fail("%s: receive: %w", s.name, err)
		return 0
	}
	by := b[offBy]
	if !bytes.Equal(b, s.answer(tid, by)) {
		t.fail("%s: reply % x", s.name, b)
	}
	return by
}

func (t *fastTest) ask(s *testShape, want byte, what string) {
	t.tid++
	t.send(s.request(t.tid, false))
	if by := t.reply(s, t.tid); t.err == nil && by != want {
		t.fail("%s: %s: answered by %#x", s.name, what, by)
	}
}

// pieces: half a request is nobody's but the daemon's, and the rest of it too.
func (t *fastTest) pieces(s *testShape) {
	b := s.request(1, false)
	t.send(b[:40])
	t.send(b[40:])
	if by := t.reply(s, 1); t.err == nil && by != byDaemon {
		t.fail("%s: split request answered by %#x", s.name, by)
	}
	t.ask(s, byKernel, "after a split request")
}

// unreadSecond: without this a client that never reads fills the kernel's memory.
func (t *fastTest) unreadSecond(s *testShape) {
	t.send(s.request(1, false))
	t.send(s.request(2, false))
	first, second := t.reply(s, 1), t.reply(s, 2)
	if t.err == nil && first != byKernel {
		t.fail("%s: answered by %#x", s.name, first)
	}
	if t.err == nil && second != byDaemon {
		t.fail("%s: %w", s.name, errUnread)
	}
}

// order: an answer from here must not overtake one that the daemon owes.
func (t *fastTest) order(s *testShape) {
	t.send(s.request(1, true))
	t.send(s.request(2, false))
	t.open()
	t.reply(s, 1)
	t.reply(s, 2)
	t.ask(s, byKernel, "after a pipelined request")
}

func (t *fastTest) open() {
	if t.err != nil {
		return
	}
	select {
	case t.gate <- struct{}{}:
	case <-time.After(selfTestTime):
		t.fail("the daemon's side was not asked")
	}
}

// giveUp: who asks with tid 0 again before the reply came gets an error. The
// kernel repeats it for ever, so what follows needs another connection.
func (t *fastTest) giveUp(s *testShape) {
	t.send(s.request(1, true))
	if t.err != nil {
		return
	}
	if _, err := t.conn.Write(s.request(0, false)); !errors.Is(err, unix.EACCES) {
		t.fail("%s: tid 0 behind an open request: send: %v", s.name, err)
	}
	t.open()
	t.reply(s, 1)
	t.dial()
}

// switches: what ends the life of an answer.
func (t *fastTest) switches(s *testShape) {
	t.fast.SetOn(false)
	t.ask(s, byDaemon, "switched off")
	t.fast.SetOn(true)
	t.fast.Raise(testGen)
	t.ask(s, byDaemon, "earlier generation")
	t.mirror(s, math.MaxUint64)
	t.ask(s, byKernel, "of this generation")
	t.fast.Void(s.slot)
	t.ask(s, byDaemon, "void")
	t.mirror(s, math.MaxUint64)
	t.fast.SetSources(testChosen + 1)
	if s.kind == kindPath || s.source {
		t.ask(s, byKernel, "no source was chosen")
	} else {
		t.ask(s, byDaemon, "its source has to be chosen anew")
	}
	t.fast.SetSources(testChosen)
	t.mirror(s, 1)
	t.ask(s, byDaemon, "expired")
	if err := t.fast.DeletePaths([]FastKey{s.key(false)}); err != nil {
		t.fail("%w", err)
	}
	t.ask(s, byDaemon, "deleted")
	for i := range testShapes {
		t.mirror(&testShapes[i], math.MaxUint64)
	}
	t.ask(s, byKernel, "mirrored again")
}

// closeUnread: a client may leave with an answer unread.
func (t *fastTest) closeUnread() {
	t.send(testShapes[1].request(1, false))
	t.dial()
	t.ask(&testShapes[1], byKernel, "on a second connection")
}
