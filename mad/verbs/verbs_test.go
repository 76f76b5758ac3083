// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build verbs && cgo

package verbs

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/fabric"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// The tests run with peerlab's preload library in place of the adapter: the test
// binary starts itself again with it. The port that it shows is that of node 0 of
// the embedded fabric, which is what gets wrapped.
const preloaded = "ACMD_TEST_VERBS_DIR"

func TestMain(m *testing.M) {
	dir := os.Getenv(preloaded)
	if dir == "" {
		if err := preload(); err != nil {
			fmt.Fprintln(os.Stderr, "tests of queue pairs need peerlab:", err)
			if os.Getenv("ACMD_CI") == "1" {
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// preload starts this binary again; it returns only with an error.
func preload() error {
	so, err := peer.FakeVerbs()
	if err != nil {
		return err
	}
	f, err := fabric.New(testFabric)
	if err != nil {
		return err
	}
	defer f.Close()
	dir, err := os.MkdirTemp("", "verbs")
	if err != nil {
		return err
	}
	env := append(os.Environ(), preloaded+"="+dir, "LD_PRELOAD="+so, "FAKEVERBS_DIR="+dir, "FAKEVERBS_DEV="+fabric.DeviceName,
		fmt.Sprintf("FAKEVERBS_GUID=%#x", uint64(f.GID(0, 1).GUID())-1), fmt.Sprintf("FAKEVERBS_LID=%d", f.LID(0, 1)),
		"FAKEVERBS_PKEYS=0xffff,0x8001")
	return syscall.Exec("/proc/self/exe", os.Args, env)
}

var (
	testFabric = fabric.Config{Nodes: 8, Seed: 7, Poison: true, NoListen: true}
	group      = fabric.ACMGroup(mad.DefaultPKey)
)

const mlid mad.LID = 0xc001

// lab is an open port and a peer on the wire.
type lab struct {
	t      *testing.T
	fabric *Fabric
	inner  *fabric.Fabric
	port   *Port
	peer   *peer.UD
	log    *madtest.Output
}

func newLab(t *testing.T, cfg Config) *lab {
	t.Helper()
	madtest.CheckLeaks(t)
	f, err := fabric.New(testFabric)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, inner: f, log: &madtest.Output{}}
	cfg.Poison, cfg.Log = true, l.log.Logger()
	w, err := Wrap(f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.fabric = w.(*Fabric)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	p, err := w.Open(fabric.DeviceName, 1)
	if err != nil {
		t.Fatal(err)
	}
	var ok bool
	if l.port, ok = p.(*Port); !ok {
		t.Fatalf("no queue pair: %s", l.log)
	}
	l.peer = peer.NewUD(t, os.Getenv(preloaded), f.LID(3, 1), f.GID(3, 1))
	l.peer.Join(t, group)
	return l
}

func (l *lab) join() {
	l.t.Helper()
	if err := l.port.JoinQP(group, mlid, 0); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) slots(n int) []*ring.Slot {
	l.t.Helper()
	list := make([]*ring.Slot, n)
	if l.port.Ring().GetN(list) != n {
		l.t.Fatal("ring is empty")
	}
	return list
}

func release(slots []*ring.Slot) {
	for _, s := range slots {
		s.Release()
	}
}

// recv waits for a message.
func (l *lab) recv(slots []*ring.Slot) int {
	l.t.Helper()
	for end := time.Now().Add(madtest.AnswerTime); time.Now().Before(end); {
		n, err := l.port.Recv(slots, end)
		if err != nil {
			l.t.Fatal(err)
		}
		if n > 0 {
			return n
		}
	}
	l.t.Fatalf("nothing came; %+v", l.port.Stats())
	return 0
}

// request is what the peer asks: TID n for a name.
func request(n uint64) *mad.Packet {
	var m mad.Packet
	if err := acm.InitRequest(&m, mad.TID(n), acm.TypeName, []byte("node0"), acm.TypeName, []byte("peer"), group); err != nil {
		panic(err)
	}
	return &m
}

// to addresses the slot to the peer's queue pair.
func (l *lab) to(s *ring.Slot, m *mad.Packet) {
	*s.MAD() = *m
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(l.peer.LID)
	h.SetQPN(l.peer.QPN)
	h.SetGID(l.peer.GID)
	h.SetQKey(mad.WellKnownQKey)
	h.SetSL(2)
	h.SetHopLimit(9)
}

// A datagram's rate is its address handle's: two rates are two handles.
func TestStaticRate(t *testing.T) {
	l := newLab(t, Config{})
	l.join()
	out := l.slots(1)
	defer release(out)
	for _, rate := range []mad.Rate{3, 7, 3} {
		l.to(out[0], request(uint64(rate)))
		out[0].Header().SetStaticRate(rate)
		if n, err := l.port.Send(out); n != 1 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	rates := map[mad.Rate]int{}
	for a := range l.port.first.ahs.young {
		rates[mad.Rate(a.static_rate)]++
	}
	if want := map[mad.Rate]int{3: 1, 7: 1}; !maps.Equal(rates, want) {
		t.Errorf("handles by rate: %v, want %v", rates, want)
	}
}

func TestConformance(t *testing.T) {
	madtest.TestTransport(t, madtest.Harness{
		Poisoned: true,
		New: func(t *testing.T) (transport.Fabric, string, uint8) {
			f, err := fabric.New(testFabric)
			if err != nil {
				t.Fatal(err)
			}
			w, err := Wrap(f, Config{Poison: true})
			if err != nil {
				t.Fatal(err)
			}
			return w, fabric.DeviceName, 1
		},
	})
}

// What a neighbour multicasts comes as it was sent, with the sender that the
// packet names, in the slot that the adapter wrote to.
func TestHear(t *testing.T) {
	l := newLab(t, Config{})
	caps := l.port.Caps()
	if !caps.Listens || !caps.Multicast || caps.QPN < 2 {
		t.Fatalf("%+v", caps)
	}
	if l.peer.Multicast(request(1)[:], group) != 0 {
		t.Error("a queue pair is in the group before it was joined")
	}
	l.join()
	l.join() // a repetition does nothing
	in := l.slots(4)
	mine := in[0]
	if n := l.peer.Multicast(request(2)[:], group); n != 1 {
		t.Fatalf("%d members heard it", n)
	}
	if n := l.recv(in); n != 1 || *in[0].MAD() != *request(2) {
		t.Fatalf("%d messages, %x", n, in[0].MAD())
	}
	if in[0] == mine {
		t.Error("the datagram was copied: the slot is the caller's own")
	}
	var want mad.UserHeader
	want.SetLength(ring.SlotSize)
	want.SetLID(l.peer.LID)
	want.SetQPN(l.peer.QPN)
	want.SetQKey(mad.WellKnownQKey)
	want.SetGID(l.peer.GID)
	if *in[0].Header() != want {
		t.Errorf("header\n% x\nwant\n% x", in[0].Header()[:], want[:])
	}
	if err := l.port.LeaveQP(group, mlid); err != nil {
		t.Error(err)
	}
	if l.peer.Multicast(request(3)[:], group) != 0 {
		t.Error("still in the group after LeaveQP")
	}
	release(in)
}

// A datagram that is short or long is told from a whole one by its length.
func TestLengths(t *testing.T) {
	l := newLab(t, Config{})
	l.join()
	in := l.slots(1)
	defer func() { release(in) }()
	for _, n := range []int{2, 24, 255} {
		if err := l.peer.Send(request(1)[:n], l.inner.LID(0, 1), l.port.caps.QPN, mad.GID{}); err != nil {
			t.Fatal(err)
		}
		l.recv(in)
		if got := int(in[0].Header().Length()); got != mad.UserHeaderSize+n {
			t.Errorf("length %d for %d bytes", got, n)
		}
	}
	// What is not of the ACM class is dropped here: an SA's answer most of all.
	for _, class := range []uint8{mad.ClassSA, mad.ClassPerf, 0} {
		m := *request(1)
		m[1] = class
		if err := l.peer.Send(m[:], l.inner.LID(0, 1), l.port.caps.QPN, mad.GID{}); err != nil {
			t.Fatal(err)
		}
	}
	long := append(request(1)[:], 0) // no buffer is large enough: the adapter drops it
	if err := l.peer.Send(long, l.inner.LID(0, 1), l.port.caps.QPN, mad.GID{}); err != nil {
		t.Fatal(err)
	}
	if err := l.peer.Send(request(9)[:], l.inner.LID(0, 1), l.port.caps.QPN, mad.GID{}); err != nil {
		t.Fatal(err)
	}
	if l.recv(in); in[0].MAD().TID() != 9 {
		t.Errorf("TID %v", in[0].MAD().TID())
	}
	if n := l.port.Stats().Foreign; n != 3 {
		t.Errorf("%d foreign datagrams", n)
	}
}

// What is sent carries the well-known Q_Key, our GID and the addresses of the
// slot's header, and the slot may be reused at once.
func TestSend(t *testing.T) {
	l := newLab(t, Config{})
	out := l.slots(2)
	defer release(out)
	l.to(out[0], request(5))
	if n, err := l.port.Send(out[:1]); n != 0 || err == nil || !strings.Contains(err.Error(), "no group of this partition") {
		t.Errorf("sent without a group: %d, %v", n, err)
	}
	l.join()
	l.to(out[1], request(6))
	h := out[1].Header()
	h.SetLID(mlid)
	h.SetQPN(mad.MulticastQPN)
	h.SetGID(group)
	if n, err := l.port.Send(out); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	*out[0].MAD(), *out[1].MAD() = mad.Packet{}, mad.Packet{}
	for i, want := range []peer.Datagram{
		{DGID: l.peer.GID, DQPN: l.peer.QPN, Data: request(5)[:]},
		{DGID: group, DQPN: mad.MulticastQPN, Data: request(6)[:]},
	} {
		want.LID, want.GID, want.QPN = l.inner.LID(0, 1), l.inner.GID(0, 1), l.port.caps.QPN
		want.QKey, want.PKey, want.SL = mad.WellKnownQKey, mad.DefaultPKey, 2
		got, err := l.peer.Recv(madtest.AnswerTime)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("datagram %d\n got %+v\nwant %+v", i, got, want)
		}
	}
	// A P_Key index whose group is not joined is refused, as is one beyond the table.
	for _, index := range []uint16{1, 99} {
		l.to(out[0], request(7))
		out[0].Header().SetPKeyIndex(index)
		if n, err := l.port.Send(out[:1]); n != 0 || err == nil {
			t.Errorf("index %d: %d, %v", index, n, err)
		}
	}
}

// Each partition has a queue pair of its own.
func TestPartitions(t *testing.T) {
	l := newLab(t, Config{})
	l.join()
	other := fabric.ACMGroup(0x8001)
	if err := l.port.JoinQP(other, mlid+1, 1); err != nil {
		t.Fatal(err)
	}
	l.peer.PKey = 0x8001
	l.peer.Join(t, other)
	if n := l.peer.Multicast(request(1)[:], other); n != 1 {
		t.Fatalf("%d members", n)
	}
	in := l.slots(1)
	defer func() { release(in) }()
	l.recv(in)
	if h := in[0].Header(); h.PKeyIndex() != 1 {
		t.Errorf("P_Key index %d", h.PKeyIndex())
	}
	l.to(in[0], request(2))
	in[0].Header().SetPKeyIndex(1)
	if _, err := l.port.Send(in); err != nil {
		t.Fatal(err)
	}
	got, err := l.peer.Recv(madtest.AnswerTime)
	if err != nil || got.PKey != 0x8001 || got.QPN == l.port.caps.QPN {
		t.Errorf("%v: P_Key %v from queue pair %#x", err, got.PKey, got.QPN)
	}
	for _, bad := range []struct {
		mgid mad.GID
		mlid mad.LID
	}{{mad.GID{0xfe, 0x80}, mlid}, {group, 5}, {group, 0}, {group, 0xffff}} {
		if l.port.JoinQP(bad.mgid, bad.mlid, 0) == nil {
			t.Errorf("joined %v", bad)
		}
	}
}

// Asynchronous events of the port come out of the fabric; those of another port
// are not ours.
func TestEvents(t *testing.T) {
	l := newLab(t, Config{})
	l.join()
	for _, kind := range []transport.EventType{transport.EventPortError, transport.EventPortActive, transport.EventReregister,
		transport.EventSMChange, transport.EventLIDChange, transport.EventPKeyChange, transport.EventGIDChange} {
		l.peer.Event(t, l.inner.LID(0, 1), uint32(kind), 0)
		ctx, cancel := context.WithTimeout(t.Context(), madtest.AnswerTime)
		select {
		case e := <-l.fabric.Events():
			if e != (transport.Event{Type: kind, Device: fabric.DeviceName, Port: 1}) {
				t.Errorf("event %d came as %+v", kind, e)
			}
		case <-ctx.Done():
			t.Errorf("event %d did not come", kind)
		}
		cancel()
	}
}

// A device that is not there, and one that fails, leave the port that is wrapped;
// the reason is logged once.
func TestNoQueuePair(t *testing.T) {
	madtest.CheckLeaks(t)
	c := testFabric
	f, err := fabric.New(c)
	if err != nil {
		t.Fatal(err)
	}
	lg := &madtest.Output{}
	w, _ := Wrap(renamed{f}, Config{Log: lg.Logger()})
	defer w.Close()
	for range 3 {
		p, err := w.Open("mlx5_9", 1)
		if err != nil {
			t.Fatal(err)
		}
		if caps := p.Caps(); caps.Listens {
			t.Errorf("%+v", caps)
		}
		p.Close()
	}
	if lg.Count("mlx5_9 is not among them") != 1 {
		t.Error(lg)
	}
}

// renamed is a fabric whose device libibverbs does not have.
type renamed struct{ *fabric.Fabric }

func (r renamed) Devices() ([]transport.Device, error) {
	list, err := r.Fabric.Devices()
	for i := range list {
		list[i].Name = "mlx5_9"
	}
	return list, err
}

func (r renamed) Open(_ string, port uint8) (transport.Port, error) {
	return r.Fabric.Open(fabric.DeviceName, port)
}

// pathQuery asks the SA for the path from a port to itself.
func pathQuery(s *ring.Slot, info *transport.PortInfo, tid mad.TID) {
	h := s.Header()
	*h = mad.UserHeader{}
	h.SetLID(info.SMLID)
	h.SetQPN(mad.QP1)
	h.SetQKey(mad.WellKnownQKey)
	sa.Init(s.MAD(), mad.MethodGet, sa.AttrPathRecord, sa.PathSLID|sa.PathDLID)
	s.MAD().SetTID(tid)
	sa.Path(s.MAD()).SetSLID(info.LID)
	sa.Path(s.MAD()).SetDLID(info.LID)
}

// watched is a transport that says how it learns what happens.
type watched struct {
	transport.Fabric
	sources []transport.EventSource
}

func (w watched) EventSources() []transport.EventSource { return slices.Clone(w.sources) }

// The engine polls devices that nobody tells it of: what the wrapped transport watches
// must show, and what was lost on either way.
func TestEventSources(t *testing.T) {
	madtest.CheckLeaks(t)
	inner, err := fabric.New(testFabric)
	if err != nil {
		t.Fatal(err)
	}
	sources := []transport.EventSource{
		{Device: fabric.DeviceName, Source: "uverbs", Events: 70, Lost: 2}, {Device: "other", Source: transport.SourcePoll, Reason: "no uverbs"},
	}
	w, err := Wrap(watched{inner, sources}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range eventQueue + 3 {
		w.(*Fabric).tell(transport.Event{Type: transport.EventGIDChange, Device: fabric.DeviceName, Port: 1})
	}
	want := slices.Clone(sources)
	want[0].Lost += 3
	if got := w.(transport.Watcher).EventSources(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	plain, err := fabric.New(testFabric)
	if err != nil {
		t.Fatal(err)
	}
	if w, err = Wrap(plain, Config{}); err != nil {
		t.Fatal(err)
	}
	if got := w.(transport.Watcher).EventSources(); got != nil {
		t.Errorf("of a transport that says nothing: %+v", got)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
