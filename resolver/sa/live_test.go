// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa_test

import (
	"errors"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ibsim"
	"acmd/mad/madtest/peer"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver/sa"

	"golang.org/x/sys/unix"
)

// live is a client at a real OpenSM, on node-a of a small simulated fabric.
func live(tb testing.TB, cfg sa.Config) (*sa.Client, transport.PortInfo, *peer.Fabric) {
	tb.Helper()
	f := peer.StartFabric(tb, "small.net")
	fab, err := ibsim.New(ibsim.Config{Base: f.SockName, Remote: f.Remote, Node: "node-a", Poison: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { fab.Close() })
	list, err := fab.Devices()
	if err != nil || len(list) != 1 {
		tb.Fatal(list, err)
	}
	info := list[0].Ports[0]
	port, err := fab.Open(list[0].Name, info.Num)
	if err != nil {
		tb.Fatal(err)
	}
	c := sa.Open(port, info, cfg, nil)
	tb.Cleanup(c.Close)
	return c, info, f
}

// do runs one query and copies what its result points to.
func do(tb testing.TB, c *sa.Client, q *sa.Query) (r sa.Result) {
	tb.Helper()
	done := make(chan struct{})
	c.Do(q, func(res *sa.Result) {
		r = *res
		if res.Packet != nil {
			p := *res.Packet
			r.Packet, r.Message = &p, append([]byte(nil), res.Message...)
		}
		close(done)
	})
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		tb.Fatal("no outcome")
	}
	return r
}

// A real OpenSM answers paths, refuses what it does not have, takes
// subscriptions, and sends tables (of which ibsim
// passes the first packet).
func TestOpenSM(t *testing.T) {
	c, info, f := live(t, sa.Config{Retries: 4})
	var toSM madsa.PathRecord
	toSM.SetSGID(info.GIDs[0])
	toSM.SetDLID(info.SMLID)
	toSM.SetPKey(0xffff)
	toSM.SetReversibleNumPath(true, 1)
	get := &sa.Query{Method: mad.MethodGet, Attr: madsa.AttrPathRecord, Data: toSM[:],
		Mask: madsa.PathSGID | madsa.PathDLID | madsa.PathPKey | madsa.PathReversible | madsa.PathNumPath}
	r := do(t, c, get)
	if r.Err != nil || r.Tries != 1 || r.Path().DLID() != info.SMLID || r.Path().SLID() != info.LID || r.Path().SGID() != info.GIDs[0] {
		t.Fatalf("%+v", r)
	}

	nobody := toSM
	nobody.SetDGID(mad.MakeGID(0xfe80<<48, 0xdead))
	r = do(t, c, &sa.Query{Method: mad.MethodGet, Attr: madsa.AttrPathRecord, Data: nobody[:], Mask: madsa.PathSGID | madsa.PathDGID})
	if !errors.Is(r.Err, sa.ErrNoRecords) || r.Packet == nil {
		t.Errorf("a path to nobody: %v", r.Err)
	}

	r = do(t, c, &sa.Query{Method: mad.MethodGet, Attr: madsa.AttrClassPortInfo})
	if r.Err != nil || madsa.ClassInfo(r.Packet).ClassVersion() != mad.SAClassVersion {
		t.Errorf("ClassPortInfo: %+v", r)
	}

	r = do(t, c, &sa.Query{Method: mad.MethodGetTable, Attr: madsa.AttrPathRecord, Data: toSM[:], Mask: madsa.PathSGID})
	n := 0
	for range madsa.Records(r.Message, len(toSM)) {
		n++
	}
	if r.Err != nil || n != 3 || !r.Partial { // ibsim cuts tables to one packet
		t.Errorf("table: %d records, partial %v, %v", n, r.Partial, r.Err)
	}

	var in madsa.InformInfo
	in.SetLIDRange(0xffff, 0)
	in.SetGeneric(true)
	in.SetSubscribe(true)
	in.SetType(0xffff)
	in.SetTrap(65)
	in.SetQPNTime(1, 19)
	in.SetProducer(0xffffff)
	// What tells whether the SA knows a subscription: records of ours, or none.
	var known [64]byte
	copy(known[:], info.GIDs[0][:])
	subs := &sa.Query{Method: mad.MethodGetTable, Attr: madsa.AttrInformInfoRecord, Mask: 1, Data: known[:]}
	if r = do(t, c, subs); r.Err == nil && len(r.Message) >= madsa.DataOffset+64 || r.Err != nil && !errors.Is(r.Err, sa.ErrNoRecords) {
		t.Errorf("subscriptions before: %d bytes, %v", len(r.Message), r.Err)
	}
	if r = do(t, c, &sa.Query{Method: mad.MethodSet, Attr: madsa.AttrInformInfo, Data: in[:]}); r.Err != nil {
		t.Errorf("InformInfo: %v", r.Err)
	}
	if r = do(t, c, subs); r.Err != nil || len(r.Message) < madsa.DataOffset+64 || mad.GID(r.Message[madsa.DataOffset:][:16]) != info.GIDs[0] {
		t.Errorf("subscriptions after: %d bytes, %v", len(r.Message), r.Err)
	}

	// What a node without an SA answers, or does not.
	elsewhere := info
	elsewhere.SMLID = f.FreeLID()
	c.Update(elsewhere)
	short := *get
	short.Tries = 1
	if r = do(t, c, &short); !errors.Is(r.Err, sa.ErrTimeout) {
		t.Errorf("at a LID that nobody has: %v", r.Err)
	}
	c.Update(info)
	if r = do(t, c, get); r.Err != nil {
		t.Errorf("after the SM is known again: %v", r.Err)
	}
}

// BenchmarkOpenSM is paths from a real OpenSM with the automatic window:
// cpu-us/path is what this process costs in all, system calls included; time per
// operation is the simulator's and OpenSM's pace.
func BenchmarkOpenSM(b *testing.B) {
	c, info, _ := live(b, sa.Config{Retries: 4})
	var rec madsa.PathRecord
	rec.SetSLID(info.LID)
	rec.SetDLID(info.SMLID)
	left, open := b.N, 0
	end := make(chan struct{})
	var done func(*sa.Result)
	next := func() {
		for open < 64 && left > 0 {
			left--
			open++
			c.Path(madsa.PathSLID|madsa.PathDLID, &rec, done)
		}
	}
	done = func(r *sa.Result) {
		if r.Err != nil {
			b.Error(r.Err)
			left = 0
		}
		if open--; open == 0 && left == 0 {
			close(end)
			return
		}
		next()
	}
	cpu := func() time.Duration {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := cpu()
	b.ReportAllocs()
	b.ResetTimer()
	if err := c.Post(next); err != nil {
		b.Fatal(err)
	}
	<-end
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/1e3/float64(b.N), "cpu-us/path")
}
