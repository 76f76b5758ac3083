// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// build makes a fabric that ends with the test.
func build(t testing.TB, c Config) *Fabric {
	t.Helper()
	c.Poison = true
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return f
}

// client drives one port of one node.
type client struct {
	t   testing.TB
	f   *Fabric
	p   *port
	tid uint32
}

func open(t testing.TB, f *Fabric, node int) *client { return openPort(t, f, node, 1) }

func openPort(t testing.TB, f *Fabric, node int, num uint8) *client {
	t.Helper()
	p, err := f.Host(node).Open(DeviceName, num)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, f: f, p: p.(*port), tid: uint32(node+1) << 16}
}

// toSM makes the header of a MAD to the SA.
func toSM(f *Fabric, s *ring.Slot) {
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(f.SMLID())
	h.SetQPN(mad.QP1)
	h.SetQKey(mad.WellKnownQKey)
	h.SetTimeoutMS(1000)
}

// query writes a PathRecord Get between two nodes, by the components of mask.
func query(f *Fabric, s *ring.Slot, tid mad.TID, mask sa.ComponentMask, from, to int) {
	toSM(f, s)
	p := s.MAD()
	sa.Init(p, mad.MethodGet, sa.AttrPathRecord, mask)
	p.SetTID(tid)
	*sa.Path(p) = question(f, mask, from, to)
}

// question is the record of such a query.
func question(f *Fabric, mask sa.ComponentMask, from, to int) (r sa.PathRecord) {
	if mask&sa.PathSGID != 0 {
		r.SetSGID(f.GID(from, 1))
	}
	if mask&sa.PathDGID != 0 {
		r.SetDGID(f.GID(to, 1))
	}
	if mask&sa.PathSLID != 0 {
		r.SetSLID(f.LID(from, 1))
	}
	if mask&sa.PathDLID != 0 {
		r.SetDLID(f.LID(to, 1))
	}
	if mask&sa.PathPKey != 0 {
		r.SetPKey(mad.DefaultPKey)
	}
	return r
}

// byGIDs is the mask that ibacm uses after a multicast answer.
const byGIDs = sa.PathDGID | sa.PathSGID | sa.PathPKey

// send sends one MAD to the SA and returns its TID.
func (c *client) send(write func(p *mad.Packet)) mad.TID {
	c.t.Helper()
	s := c.slot()
	defer s.Release()
	toSM(c.f, s)
	write(s.MAD())
	c.tid++
	s.MAD().SetTID(mad.TID(c.tid))
	c.put(s)
	return mad.TID(c.tid)
}

func (c *client) slot() *ring.Slot {
	c.t.Helper()
	s := c.p.Ring().Get()
	if s == nil {
		c.t.Fatal("ring is empty")
	}
	return s
}

func (c *client) put(s *ring.Slot) {
	c.t.Helper()
	if n, err := c.p.Send([]*ring.Slot{s}); n != 1 || err != nil {
		c.t.Fatalf("send: %d, %v", n, err)
	}
}

// got is a received message.
type got struct {
	h    mad.UserHeader
	m    mad.Packet
	long []byte
}

// recv takes one message within d, nil if none comes.
func (c *client) recv(d time.Duration) *got {
	c.t.Helper()
	s := c.slot()
	defer s.Release()
	n, err := c.p.Recv([]*ring.Slot{s}, time.Now().Add(d))
	if err != nil {
		c.t.Fatalf("recv: %v", err)
	}
	if n == 0 {
		return nil
	}
	return &got{*s.Header(), *s.MAD(), s.Long()}
}

// ask sends one MAD to the SA and returns the answer, nil if none is there.
func (c *client) ask(write func(p *mad.Packet)) *got {
	c.t.Helper()
	tid := c.send(write)
	g := c.recv(0)
	for g != nil && g.m.Method() == mad.MethodReport {
		g = c.recv(0)
	}
	if g != nil && g.m.TID().Low() != tid.Low() {
		c.t.Fatalf("answer to %v, asked %v", g.m.TID(), tid)
	}
	return g
}

// path asks for a path.
func (c *client) path(mask sa.ComponentMask, r sa.PathRecord) (sa.PathRecord, mad.Status) {
	c.t.Helper()
	g := c.ask(func(p *mad.Packet) {
		sa.Init(p, mad.MethodGet, sa.AttrPathRecord, mask)
		*sa.Path(p) = r
	})
	if g == nil {
		c.t.Fatal("no answer")
	}
	return *sa.Path(&g.m), g.m.Status()
}

// event takes the next event of a view, nil if there is none.
func event(h transport.Fabric) *transport.Event {
	select {
	case e := <-h.Events():
		return &e
	default:
		return nil
	}
}

func wantEvent(t testing.TB, h transport.Fabric, typ transport.EventType, port uint8) {
	t.Helper()
	e := event(h)
	if e == nil || e.Type != typ || e.Port != port || e.Device != DeviceName {
		t.Fatalf("event %+v, want type %d of port %d", e, typ, port)
	}
}

// subscriptions returns how many there are.
func (n *informer) subscriptions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.subs)
}
