// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sent is a packet that left through a scripted port.
type sent struct {
	at  time.Time
	hdr mad.UserHeader
	mad mad.Packet
}

// scriptPort is a transport whose far end is a function. With caps.Timers it
// does what the kernel does: it refuses a second copy of a TID that is
// outstanding, and hands a send back when its time is over.
type scriptPort struct {
	tb     testing.TB
	ring   *ring.Ring
	caps   transport.Caps
	script func(p *scriptPort, s *sent) error // nil: silence

	mu      sync.Mutex
	in      []*message
	held    map[uint64]*time.Timer
	log     []sent
	keepLog bool
	wakes   int
	woken   bool
	recvErr error
	closed  bool
	signal  chan struct{}
	recvs   atomic.Int64
}

type message struct {
	hdr  mad.UserHeader
	mad  []byte
	long []byte
}

func newPort(tb testing.TB, script func(*scriptPort, *sent) error) *scriptPort {
	r, err := ring.New(64, true)
	if err != nil {
		tb.Fatal(err)
	}
	return &scriptPort{
		tb: tb, ring: r, script: script, keepLog: true,
		held: map[uint64]*time.Timer{}, signal: make(chan struct{}, 1),
	}
}

func (p *scriptPort) Ring() *ring.Ring                      { return p.ring }
func (p *scriptPort) Caps() transport.Caps                  { return p.caps }
func (p *scriptPort) JoinQP(mad.GID, mad.LID, uint16) error { return nil }
func (p *scriptPort) LeaveQP(mad.GID, mad.LID) error        { return nil }
func (p *scriptPort) key(m *mad.Packet) uint64              { return uint64(m.Class())<<32 | uint64(m.TID().Low()) }
func (p *scriptPort) set(f func())                          { p.mu.Lock(); f(); p.mu.Unlock(); p.kick() }
func (p *scriptPort) kick() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}
func (p *scriptPort) Wake()        { p.set(func() { p.woken = true; p.wakes++ }) }
func (p *scriptPort) Close() error { p.set(func() { p.closed = true }); return nil }

// sends returns what left so far.
func (p *scriptPort) sends() []sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

func (p *scriptPort) Send(slots []*ring.Slot) (int, error) {
	for i, s := range slots {
		p.mu.Lock()
		closed := p.closed
		p.mu.Unlock()
		if closed {
			return i, net.ErrClosed
		}
		out := &sent{time.Now(), *s.Header(), *s.MAD()}
		if p.caps.Timers && out.hdr.TimeoutMS() != 0 && !out.mad.IsResponse() {
			if err := p.holdBack(out); err != nil {
				return i, err
			}
		}
		if p.script != nil {
			if err := p.script(p, out); err != nil {
				return i, err
			}
		}
		if p.keepLog {
			p.mu.Lock()
			p.log = append(p.log, *out)
			p.mu.Unlock()
		}
	}
	return len(slots), nil
}

func (p *scriptPort) holdBack(out *sent) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.key(&out.mad)
	if p.held[k] != nil {
		return syscall.EINVAL
	}
	back := &message{hdr: out.hdr, mad: slices.Clone(out.mad[:mad.HeaderSize])}
	back.hdr.SetStatus(mad.StatusTimeout)
	p.held[k] = time.AfterFunc(time.Duration(out.hdr.TimeoutMS())*time.Millisecond, func() {
		p.set(func() {
			delete(p.held, k)
			p.in = append(p.in, back)
		})
	})
	return nil
}

// answer delivers m as an answer to what was sent, after d.
func (p *scriptPort) answer(to *sent, d time.Duration, m *mad.Packet) {
	msg := &message{hdr: to.hdr, mad: slices.Clone(m[:])}
	msg.hdr.SetLength(mad.UserHeaderSize + mad.PacketSize)
	p.deliver(d, msg)
}

func (p *scriptPort) deliver(d time.Duration, msg *message) {
	put := func() {
		p.set(func() {
			k := p.key((*mad.Packet)(append(slices.Clone(msg.mad), make([]byte, mad.PacketSize)...)[:mad.PacketSize]))
			if p.caps.Timers && msg.hdr.Status() == 0 && msg.mad[3]&0x80 != 0 {
				t := p.held[k]
				if t == nil {
					return // the kernel drops an answer that nobody waits for
				}
				t.Stop()
				delete(p.held, k)
			}
			p.in = append(p.in, msg)
		})
	}
	if d == 0 {
		put()
		return
	}
	time.AfterFunc(d, put)
}

func (p *scriptPort) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	p.recvs.Add(1)
	for {
		p.mu.Lock()
		switch {
		case p.recvErr != nil:
			err := p.recvErr
			p.mu.Unlock()
			return 0, err
		case p.closed:
			p.mu.Unlock()
			return 0, net.ErrClosed
		case len(p.in) > 0:
			n := min(len(slots), len(p.in))
			for i, m := range p.in[:n] {
				s := slots[i]
				*s.Header() = m.hdr
				for j := range s.MAD() {
					s.MAD()[j] = 0xee // stale memory behind what is read
				}
				copy(s.MAD()[:], m.mad)
				s.SetLong(m.long)
			}
			p.in = append(p.in[:0], p.in[n:]...)
			p.mu.Unlock()
			return n, nil
		case p.woken:
			p.woken = false
			p.mu.Unlock()
			return 0, nil
		}
		p.mu.Unlock()
		if deadline.IsZero() {
			<-p.signal
			continue
		}
		d := time.Until(deadline)
		if d <= 0 {
			return 0, nil
		}
		t := time.NewTimer(d)
		select {
		case <-p.signal:
		case <-t.C:
		}
		t.Stop()
	}
}

// activeInfo is a port that can reach an SA at LID 1.
func activeInfo() transport.PortInfo {
	return transport.PortInfo{
		Num: 1, State: mad.PortActive, LID: 4, SMLID: 1, SMSL: 3,
		GIDs: []mad.GID{gid(4)}, PKeys: []mad.PKey{mad.DefaultPKey},
	}
}

func gid(n int) mad.GID { return mad.MakeGID(0xfe80<<48, mad.GUID(n)) }

// question is a path query as the engine makes it.
func question(n int) (madsa.ComponentMask, *madsa.PathRecord) {
	var r madsa.PathRecord
	r.SetSGID(gid(4))
	r.SetDGID(gid(n))
	r.SetPKey(mad.DefaultPKey)
	r.SetReversibleNumPath(true, 1)
	return madsa.PathDGID | madsa.PathSGID | madsa.PathPKey | madsa.PathReversible | madsa.PathNumPath, &r
}

// reply turns a request into the SA's success for it.
func reply(s *sent) *mad.Packet {
	m := s.mad
	m.SetMethod(responseMethod(m.Method()))
	if m.AttrID() == madsa.AttrPathRecord {
		r := madsa.Path(&m)
		r.SetDLID(mad.LID(r.DGID().GUID()))
		r.SetSLID(4)
		r.SetRate(madsa.Exactly, 63) // field case 56: unknown codes pass
		madsa.SetAttrOffset(&m, 8)
	}
	return &m
}

// status turns a request into a refusal.
func status(s *sent, st mad.Status) *mad.Packet {
	m := s.mad
	m.SetMethod(responseMethod(m.Method()))
	m.SetStatus(st)
	return &m
}

// outcome is what a callback saw.
type outcome struct {
	err   error
	path  madsa.PathRecord
	tries int
	at    time.Time
}

// ask sends a path question and returns where its outcome arrives. A second
// callback fails the test.
func ask(tb testing.TB, c *Client, n int) <-chan outcome {
	ch := make(chan outcome, 2)
	mask, rec := question(n)
	c.Path(mask, rec, func(r *Result) {
		o := outcome{err: r.Err, tries: r.Tries, at: time.Now()}
		if r.Packet != nil {
			o.path = *r.Path()
		}
		ch <- o
		if len(ch) > 1 {
			tb.Error("done was called twice")
		}
	})
	return ch
}

// closeAll closes the client and finds slots that did not come back.
func closeAll(tb testing.TB, c *Client, p *scriptPort) {
	tb.Helper()
	c.Close()
	if free := p.ring.Free(); free != p.ring.Cap() {
		tb.Errorf("%d of %d slots are back after close", free, p.ring.Cap())
	}
	if len(c.timers) != 0 || len(c.byTID) != 0 || c.seated != 0 || c.pending.Load() != 0 {
		tb.Errorf("after close: %d timers, %d TIDs, %d seated, %d pending", len(c.timers), len(c.byTID), c.seated, c.pending.Load())
	}
	p.mu.Lock()
	for _, t := range p.held {
		t.Stop()
	}
	p.mu.Unlock()
	if err := p.ring.Close(); err != nil {
		tb.Error(err)
	}
}
