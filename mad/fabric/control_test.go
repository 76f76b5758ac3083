// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"errors"
	"net"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// info is the port as its view shows it.
func info(t testing.TB, h transport.Fabric, num uint8) transport.PortInfo {
	t.Helper()
	d, err := h.Devices()
	if err != nil || len(d) != 1 {
		t.Fatalf("devices: %v, %v", d, err)
	}
	return d[0].Ports[num-1]
}

// A hand-over with and without events: the old SM is silent, the port shows the
// new LID when it is read again (field case 10).
func TestMoveSM(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	c.join(mad.DefaultPKey)
	c.inform(wish(65))
	old := f.SMLID()
	if err := f.MoveSM(2, true); err != nil {
		t.Fatal(err)
	}
	if e := event(f); e != nil {
		t.Errorf("event %+v", e)
	}
	s := c.slot()
	defer s.Release()
	query(f, s, 1, byGIDs, 0, 3)
	s.Header().SetLID(old)
	c.put(s)
	if g := c.recv(0); g != nil || f.Stats().Lost[LostNoSA] != 1 {
		t.Errorf("the old SM answered: %v", g)
	}
	if got := info(t, f, 1).SMLID; got != f.LID(2, 1) || got == old {
		t.Errorf("SM LID %v", got)
	}
	if g := c.get(3); g == nil || g.h.LID() != f.LID(2, 1) {
		t.Errorf("new SM: %+v", g)
	}
	f.SetPort(5, 1, mad.PortDown)
	if g := c.report(0); g == nil || sa.Event(&g.m).IssuerLID() != f.LID(2, 1) {
		t.Errorf("subscription was not kept: %+v", g)
	}
	if err := f.MoveSM(3, false, transport.EventSMChange, transport.EventReregister); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, f, transport.EventSMChange, 1)
	wantEvent(t, f, transport.EventReregister, 1)
	if f.informer.subscriptions() != 0 {
		t.Error("subscriptions were kept")
	}
	if g := c.resolve(acm.TypeIPv4, ip4(4)); g != nil {
		t.Error("membership was kept")
	}
	c.join(mad.DefaultPKey)
	if g := c.resolve(acm.TypeIPv4, ip4(4)); g == nil {
		t.Error("joined again, and no answer")
	}
}

// A peer's LID changes without any event here (field case 8); a local one's with
// an event.
func TestSetLID(t *testing.T) {
	f := build(t, Config{Nodes: 8, LMC: 1})
	c := open(t, f, 0)
	old := f.LID(3, 1)
	if err := f.SetLID(3, 1, 0x100); err != nil {
		t.Fatal(err)
	}
	if e := event(f); e != nil {
		t.Errorf("event %+v", e)
	}
	if g := c.get(3); sa.Path(&g.m).DLID() != 0x100 {
		t.Errorf("path %x", g.m[56:120])
	}
	for lid, want := range map[mad.LID]mad.Status{0x100: 0, 0x101: 0, old: 0x0300, old + 1: 0x0300, 0x102: 0x0300} {
		q := question(f, sa.PathSLID, 0, 3)
		q.SetDLID(lid)
		if got, status := f.SAPath(sa.PathSLID|sa.PathDLID, &q); status != want || status == 0 && got.DLID() != lid {
			t.Errorf("LID %v: %#x %x", lid, status, got)
		}
	}
	for _, bad := range []mad.LID{0, f.LID(2, 1), 0x201, 0xc000, 0xffff} {
		if f.SetLID(3, 1, bad) == nil {
			t.Errorf("took LID %v", bad)
		}
	}
	if err := f.SetLID(0, 1, 0x300); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, f, transport.EventLIDChange, 1)
	if got := info(t, f, 1); got.LID != 0x300 || got.LMC != 1 {
		t.Errorf("%+v", got)
	}
	if g := c.get(3); g == nil || sa.Path(&g.m).SLID() != 0x300 {
		t.Errorf("path from the new LID: %+v", g)
	}
}

// Ports go down and up: events here, traps and missing paths for others (field
// cases 6, 22).
func TestSetPort(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	a, b := open(t, f, 0), open(t, f, 1)
	b.inform(wish(64))
	b.inform(wish(65))
	b.inform(wish(67))
	a.join(mad.DefaultPKey)
	r := joinRecord(f, 0)
	r.SetMGID(mad.GID{0xff, 0x12, 15: 1})
	a.member(mad.MethodSet, stockJoin, r)

	if err := f.SetPort(0, 1, mad.PortDown); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, f, transport.EventPortError, 1)
	for _, trap := range []uint16{65, 67} {
		if g := b.report(0); g == nil || sa.Event(&g.m).Trap() != trap {
			t.Fatalf("trap %d: %+v", trap, g)
		}
	}
	if _, status := b.member(mad.MethodGet, sa.MCMGID, r); status != 0x0300 {
		t.Errorf("the group of the dead port is still there: %#x", status)
	}
	if got := info(t, f, 1); got.State != mad.PortDown {
		t.Errorf("%+v", got)
	}
	if g := a.get(3); g != nil || f.Stats().Lost[LostPortDown] != 1 {
		t.Error("a port that is down was answered")
	}
	if g := b.get(0); g == nil || g.m.Status() != 0x0300 {
		t.Errorf("path to a port that is down: %+v", g)
	}
	f.SetPort(0, 1, mad.PortInit)
	if e := event(f); e != nil || info(t, f, 1).State != mad.PortInit {
		t.Errorf("event %+v", e)
	}
	f.SetPort(0, 1, mad.PortActive)
	wantEvent(t, f, transport.EventPortActive, 1)
	if g := b.report(0); g == nil || sa.Event(&g.m).Trap() != 64 || sa.Event(&g.m).GID() != f.GID(0, 1) {
		t.Fatalf("trap 64: %+v", g)
	}
	if g := a.get(3); g == nil || g.m.Status() != 0 {
		t.Error("no answer when up again")
	}
	if g := a.resolve(acm.TypeIPv4, ip4(4)); g != nil {
		t.Error("membership survived")
	}
	if err := f.Raise(0, 1, transport.EventReregister); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, f, transport.EventReregister, 1)
	// A remote port: no event here.
	f.SetPort(4, 1, mad.PortDown)
	if e := event(f); e != nil {
		t.Errorf("event %+v", e)
	}
	a.join(mad.DefaultPKey)
	if a.resolve(acm.TypeIPv4, ip4(4)) != nil {
		t.Error("a service behind a dead port answered")
	}
}

// The P_Key table changes, holes and all (field case 16).
func TestSetPKeys(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	keys := []mad.PKey{0x7fff, 0, 0x8001, 0x8000}
	for _, n := range []int{0, 3} {
		if err := f.SetPKeys(n, keys); err != nil {
			t.Fatal(err)
		}
	}
	keys[0] = 0 // the caller's own
	wantEvent(t, f, transport.EventPKeyChange, 1)
	if got := info(t, f, 1).PKeys; len(got) != 4 || got[0] != 0x7fff || got[2] != 0x8001 {
		t.Errorf("%v", got)
	}
	mask := sa.PathSGID | sa.PathDGID
	q := question(f, mask, 0, 3)
	if got, status := f.SAPath(mask, &q); status != 0 || got.PKey() != 0x8001 {
		t.Errorf("%#x %x: two limited members talk in the partition where they are full", status, got)
	}
	q = question(f, mask, 0, 4)
	if got, status := f.SAPath(mask, &q); status != 0 || got.PKey() != 0xffff {
		t.Errorf("%#x %x", status, got)
	}
	c.join(0x8001)
	if f.SetPKeys(1, make([]mad.PKey, 200)) == nil {
		t.Error("took 200 P_Keys")
	}
}

func TestSetPrefix(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	c := open(t, f, 0)
	linkLocal := question(f, byGIDs, 0, 3)
	f.SetPrefix(0xfec0000000000001)
	wantEvent(t, f, transport.EventGIDChange, 1)
	if got := info(t, f, 1).GIDs[0]; got.Prefix() != 0xfec0000000000001 || got.GUID() != f.PortGUID(0, 1) {
		t.Errorf("GID %v", got)
	}
	g := c.get(3)
	if g == nil || sa.Path(&g.m).DGID() != f.GID(3, 1) {
		t.Errorf("%+v", g)
	}
	// The link-local prefix is good everywhere; the answer has the subnet's.
	if got, status := f.SAPath(byGIDs, &linkLocal); status != 0 || got != *sa.Path(&g.m) {
		t.Errorf("%#x %x", status, got)
	}
	r := joinRecord(f, 0)
	if _, status := c.member(mad.MethodSet, stockJoin, r); status != 0 {
		t.Errorf("join with the new prefix: %#x", status)
	}
}

// A path to another subnet keeps its hop limit (field case 62).
func TestRouter(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	const far = 0xfec0000000000009
	if err := f.SetRouter(far, 6, 1); err != nil {
		t.Fatal(err)
	}
	q := question(f, byGIDs, 0, 0)
	q.SetDGID(mad.MakeGID(far, 0x1234))
	got, status := f.SAPath(byGIDs, &q)
	if status != 0 || got.DGID() != q.DGID() || got.DLID() != f.LID(6, 1) || got.HopLimit() != 0xff {
		t.Errorf("%#x %x", status, got)
	}
	q.SetDLID(f.LID(5, 1))
	if _, status := f.SAPath(byGIDs|sa.PathDLID, &q); status != 0x0200 {
		t.Errorf("other LID than the router's: %#x", status)
	}
	f.SetPort(6, 1, mad.PortDown)
	if _, status := f.SAPath(byGIDs, &q); status != 0x0300 {
		t.Errorf("router down: %#x", status)
	}
}

// The adapter is pulled out under a waiting Recv and comes back (field case 76).
func TestRemoveDevice(t *testing.T) {
	f := build(t, Config{Nodes: 8, Ports: 2})
	c, second := open(t, f, 0), openPort(t, f, 0, 2)
	done := make(chan error, 1)
	in := []*ring.Slot{second.slot()}
	go func() {
		_, err := second.p.Recv(in, time.Time{})
		done <- err
	}()
	if err := f.RemoveDevice(0); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, transport.ErrGone) {
			t.Errorf("recv: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("recv still waits")
	}
	in[0].Release()
	s := c.slot()
	if _, err := c.p.Send([]*ring.Slot{s}); !errors.Is(err, transport.ErrGone) {
		t.Errorf("send: %v", err)
	}
	s.Release()
	if d, err := f.Devices(); err != nil || len(d) != 0 {
		t.Errorf("devices: %v, %v", d, err)
	}
	if _, err := f.Open(DeviceName, 1); !errors.Is(err, transport.ErrNoPort) {
		t.Errorf("open: %v", err)
	}
	wantEvent(t, f, transport.EventPortError, 1)
	wantEvent(t, f, transport.EventPortError, 2)
	wantEvent(t, f, transport.EventDeviceFatal, 1)
	wantEvent(t, f, transport.EventDeviceRemove, 0)
	c.p.Close()
	if err := f.RestoreDevice(0); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, f, transport.EventDeviceAdd, 0)
	wantEvent(t, f, transport.EventPortActive, 1)
	if g := open(t, f, 0).get(3); g == nil || g.m.Status() != 0 {
		t.Errorf("after it came back: %+v", g)
	}
	if _, err := second.p.Recv(nil, time.Time{}); !errors.Is(err, transport.ErrGone) {
		t.Errorf("old handle: %v", err)
	}
}

// Two ports, the second one Ethernet: it is there, and nothing InfiniBand
// happens on it (field case 21).
func TestMixed(t *testing.T) {
	f := build(t, Config{Nodes: 8, Ports: 2, Mixed: true})
	p1, p2 := info(t, f, 1), info(t, f, 2)
	if p1.LinkLayer != transport.LinkInfiniBand || p2.LinkLayer != transport.LinkEthernet || p2.LID != 0 || p2.State != mad.PortActive {
		t.Errorf("%+v %+v", p1, p2)
	}
	q := question(f, byGIDs, 0, 0)
	q.SetDGID(f.GID(3, 2))
	if _, status := f.SAPath(byGIDs, &q); status != 0x0300 {
		t.Errorf("path to an Ethernet port: %#x", status)
	}
	c := openPort(t, f, 0, 2)
	if g := c.get(3); g != nil {
		t.Error("answer on an Ethernet port")
	}
	if f.SetLID(0, 2, 0x100) == nil {
		t.Error("Ethernet port took a LID")
	}
	for _, p := range []uint8{2, 3, 255} {
		if err := f.Raise(0, p, transport.EventGIDChange); err != nil {
			t.Error(err)
		}
		wantEvent(t, f, transport.EventGIDChange, p)
	}
}

// Rails of two-port adapters in one subnet, each with its own names.
func TestTwoPorts(t *testing.T) {
	f := build(t, Config{Nodes: 8, Ports: 2})
	c := openPort(t, f, 0, 2)
	c.join(mad.DefaultPKey)
	a := IPv4(3, 2).As4()
	if g := c.resolve(acm.TypeIPv4, a[:]); g == nil || g.h.LID() != f.LID(3, 2) || g.h.GID() != f.GID(3, 2) {
		t.Errorf("%+v", g)
	}
	if g := c.resolve(acm.TypeName, []byte(NodeName(3, 2))); g == nil || g.h.LID() != f.LID(3, 2) {
		t.Errorf("%+v", g)
	}
}

// The SL towards the SM is that of the path, as the subnet manager sets it.
func TestSMSL(t *testing.T) {
	f := build(t, Config{Nodes: 100, Topology: Torus, Dims: 2, Hosts: 1, SMNode: 99})
	q := question(f, byGIDs, 0, 99)
	got, _ := f.SAPath(byGIDs, &q)
	if sl := info(t, f, 1).SMSL; sl != got.SL() || sl != 3 {
		t.Errorf("SM SL %d, path has %d, want 3", sl, got.SL())
	}
}

func TestSetters(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	for name, err := range map[string]error{
		"MoveSM": f.MoveSM(8, true), "SetLID": f.SetLID(0, 2, 7), "SetPort": f.SetPort(-1, 1, mad.PortDown),
		"SetPKeys": f.SetPKeys(8, nil), "SetRouter": f.SetRouter(1, 8, 1), "SetSilent": f.SetSilent(8, true),
		"RemoveDevice": f.RemoveDevice(8), "RestoreDevice": f.RestoreDevice(8), "Raise": f.Raise(8, 1, 9),
	} {
		if !errors.Is(err, transport.ErrNoPort) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := open(t, f, 0)
	c.join(mad.DefaultPKey)
	f.SetSilent(3, true)
	if c.resolve(acm.TypeIPv4, ip4(3)) != nil {
		t.Error("silent node answered")
	}
	f.SetSilent(3, false)
	f.SetSilent(0, false) // has a view: stays as it is
	if c.resolve(acm.TypeIPv4, ip4(3)) == nil {
		t.Error("node stayed silent")
	}
}

// A view can be closed and taken again; the fabric's end is that of all views.
func TestHostLife(t *testing.T) {
	f := build(t, Config{Nodes: 8})
	h := f.Host(2)
	if f.Host(2) != h || h.Node() != 2 {
		t.Error("another view of the same node")
	}
	p, err := h.Open(DeviceName, 1)
	if err != nil {
		t.Fatal(err)
	}
	held := p.Ring().Get()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Send(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("send: %v", err)
	}
	held.Bytes()[0] = 1 // stays valid
	held.Release()
	if _, open := <-h.Events(); open {
		t.Error("events are open")
	}
	if f.Host(2) == h {
		t.Error("closed view was given out")
	}
	for i := range eventsBacklog + 5 {
		if err := f.Raise(0, 1, transport.EventType(9+i%2)); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.Stats().EventsLost; n != 5 {
		t.Errorf("%d events lost, want 5", n)
	}
	f.Close()
	if _, err := f.Host(3).Open(DeviceName, 1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("open after the end: %v", err)
	}
	if _, err := f.Devices(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("devices after the end: %v", err)
	}
	if len(f.busy) != 0 {
		t.Error("memory of a ring was not given back")
	}
	if _, open := <-f.Host(99).Events(); open {
		t.Error("view of no node")
	}
}

// Everything at once: daemons on four nodes ask, join and listen while the
// subnet changes under them. Every answer is a path or a refusal.
func TestChangesUnderLoad(t *testing.T) {
	f := build(t, Config{Nodes: 64, Topology: Torus, KernelTimers: true, Slots: 64})
	stop, changed := make(chan struct{}), make(chan struct{})
	errs := make(chan error, 8)
	for node := range 4 {
		c := open(t, f, node)
		c.join(mad.DefaultPKey)
		c.inform(wish(sa.AnyTrap))
		go func() { errs <- c.load(stop) }()
	}
	go func() {
		defer close(changed)
		for i := range 60 {
			f.SetLID(10+i%10, 1, mad.LID(0x1000+i))
			f.SetPort(30+i%10, 1, mad.State(1+i%4))
			f.SetPKeys(40+i%10, []mad.PKey{mad.PKey(0x8001 + i%3), 0xffff})
			f.MoveSM(20+i%5, i%2 == 0, transport.EventSMChange)
			f.SetPrefix(DefaultPrefix + uint64(i%2))
			f.PeerAsk(50, 1, mad.DefaultPKey, 5, acm.TypeIPv4, ip4(i%4))
			f.AddRule(Rule{Copies: 1, Count: 3}).Remove()
			f.Trace(func(Event) {})()
			f.Stats()
			if p, err := f.Host(60+i%3).Open(DeviceName, 1); err == nil {
				p.Close()
			}
			f.Host(60 + i%3).Close()
			f.RemoveDevice(59)
			f.RestoreDevice(59)
		}
	}()
	<-changed
	close(stop)
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// load asks for paths and answers Reports until stop.
func (c *client) load(stop chan struct{}) error {
	out, in := c.p.Ring().Get(), []*ring.Slot{c.p.Ring().Get(), c.p.Ring().Get()}
	defer func() { out.Release(); in[0].Release(); in[1].Release() }()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		query(c.f, out, mad.TID(0x100000+i), byGIDs, c.p.node, i%64)
		if _, err := c.p.Send([]*ring.Slot{out}); err != nil {
			return err
		}
		n, err := c.p.Recv(in, time.Now().Add(time.Millisecond))
		if err != nil {
			return err
		}
		for _, s := range in[:n] {
			m := s.MAD()
			switch {
			case s.Header().Status() != 0: // asked an SM that had moved
			case m.Method() == mad.MethodReport:
				m.SetMethod(mad.MethodReportResp)
				if _, err := c.p.Send([]*ring.Slot{s}); err != nil {
					return err
				}
			case m.Class() == mad.ClassSA && m.Status() != 0 && m.Status() != 0x0300:
				return errors.New("status of no path and no refusal")
			}
		}
	}
}
