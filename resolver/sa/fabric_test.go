// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
)

// The client against the embedded fabric, whose SA answers as OpenSM does.

func fabricInfo(f *fabric.Fabric) transport.PortInfo {
	d, _ := f.Devices()
	return d[0].Ports[0]
}

// onFabric runs test in a bubble with a client on node 0 of a fabric.
func onFabric(t *testing.T, fc fabric.Config, cfg Config, test func(*testing.T, *fabric.Fabric, *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fc.Seed, fc.Poison, fc.Slots = 3, true, 64
		f, err := fabric.New(fc)
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Open(fabric.DeviceName, 1)
		if err != nil {
			t.Fatal(err)
		}
		var c atomic.Pointer[Client]
		if cfg.Suspect == nil {
			cfg.Suspect = func() { go func() { c.Load().Update(fabricInfo(f)) }() }
		}
		c.Store(Open(p, fabricInfo(f), cfg, nil))
		test(t, f, c.Load())
		c.Load().Close()
		if free, size := p.Ring().Free(), p.Ring().Cap(); free != 0 && free != size {
			t.Errorf("%d of %d slots are back", free, size)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}

// askNode asks for the path to a node and compares with what the SA has.
func askNode(t *testing.T, f *fabric.Fabric, c *Client, n int) <-chan outcome {
	var rec madsa.PathRecord
	rec.SetSGID(f.GID(0, 1))
	rec.SetDGID(f.GID(n, 1))
	rec.SetPKey(0xffff)
	rec.SetReversibleNumPath(true, 1)
	mask := madsa.PathSGID | madsa.PathDGID | madsa.PathPKey | madsa.PathReversible | madsa.PathNumPath
	want, _ := f.SAPath(mask, &rec)
	ch := make(chan outcome, 1)
	c.Path(mask, &rec, func(r *Result) {
		o := outcome{err: r.Err, tries: r.Tries, at: time.Now()}
		if r.Err == nil {
			if o.path = *r.Path(); o.path != want {
				t.Errorf("node %d: path %x, want %x", n, o.path, want)
			}
		}
		ch <- o
	})
	return ch
}

// A thousand paths through a fabric that loses, delays, repeats, answers BUSY
// and answers wrong: with tries enough, every one arrives and is right.
func TestBadFabric(t *testing.T) {
	for _, timers := range []bool{false, true} {
		t.Run(fmt.Sprintf("timers=%v", timers), func(t *testing.T) {
			fc := fabric.Config{Nodes: 300, Topology: fabric.FatTree, Delay: 50 * time.Microsecond, DelayMax: 5 * time.Millisecond,
				Loss: 0.05, KernelTimers: timers}
			onFabric(t, fc, Config{Retries: 20, Depth: 16}, func(t *testing.T, f *fabric.Fabric, c *Client) {
				path := madsa.AttrPathRecord
				f.AddRule(fabric.Rule{Attr: path, Do: fabric.Answer, Status: mad.StatusBusy, Prob: 0.05})
				f.AddRule(fabric.Rule{Attr: path, Do: fabric.OtherDGID, Prob: 0.03})
				f.AddRule(fabric.Rule{Attr: path, Do: fabric.OtherTID, Prob: 0.03})
				f.AddRule(fabric.Rule{Attr: path, Do: fabric.OtherAttr, Prob: 0.03})
				f.AddRule(fabric.Rule{Attr: path, On: fabric.Deliveries, Copies: 2, Prob: 0.1})
				f.AddRule(fabric.Rule{Attr: path, Delay: time.Second, DelayMax: 2 * time.Second, Prob: 0.03})
				rec := f.Record()
				defer rec.Stop()
				var outs []<-chan outcome
				for i := range 1000 {
					outs = append(outs, askNode(t, f, c, 1+i%299))
				}
				for i, ch := range outs {
					if o := <-ch; o.err != nil {
						t.Errorf("%d: %v after %d tries", i, o.err, o.tries)
					}
				}
				for _, times := range rec.SendTimes(mad.ClassSA) {
					for i := 1; i < len(times); i++ {
						if gap := times[i].Sub(times[i-1]); gap < MinGap {
							t.Errorf("gap %v", gap)
						}
					}
				}
				if st := c.Stats(); st.Busy == 0 || st.Mismatched == 0 || st.Timeouts == 0 || st.Answers != 1000 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// Field case 1: never more outstanding than the window, which opens to 16.
func TestOutstandingOnFabric(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 300, Delay: 50 * time.Millisecond}, Config{}, func(t *testing.T, f *fabric.Fabric, c *Client) {
		rec := f.Record()
		defer rec.Stop()
		var outs []<-chan outcome
		for i := range 299 {
			outs = append(outs, askNode(t, f, c, 1+i))
		}
		for _, ch := range outs {
			if o := <-ch; o.err != nil {
				t.Error(o.err)
			}
		}
		if n := rec.MaxOutstanding(); n != AutoWindow {
			t.Errorf("%d outstanding", n)
		}
		if n := f.Stats().PathGets; n != 299 {
			t.Errorf("%d Gets", n)
		}
	})
}

// Field case 10: the SM moves without an event under load; every question is
// answered by the new one.
func TestHandOver(t *testing.T) {
	for _, timers := range []bool{false, true} {
		for _, told := range []bool{false, true} {
			onFabric(t, fabric.Config{Nodes: 50, Delay: time.Millisecond, KernelTimers: timers}, Config{Retries: 3}, func(t *testing.T, f *fabric.Fabric, c *Client) {
				var outs []<-chan outcome
				for i := range 40 {
					outs = append(outs, askNode(t, f, c, 1+i))
				}
				time.Sleep(1500 * time.Microsecond)
				if err := f.MoveSM(45, true); err != nil {
					t.Fatal(err)
				}
				if told {
					c.Update(fabricInfo(f))
				}
				begin := time.Now()
				for i, ch := range outs {
					o := <-ch
					if o.err != nil {
						t.Errorf("timers %v told %v, %d: %v", timers, told, i, o.err)
					}
					if d := o.at.Sub(begin); told && d > time.Second || d > 2500*time.Millisecond {
						t.Errorf("timers %v told %v, %d: after %v", timers, told, i, d)
					}
				}
			})
		}
	}
}

// A table of all paths comes whole, cut where the SA ends it.
func TestTable(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 500}, Config{}, func(t *testing.T, f *fabric.Fabric, c *Client) {
		for _, one := range []bool{false, true} {
			var rec madsa.PathRecord
			rec.SetSGID(f.GID(0, 1))
			mask := madsa.PathSGID
			want := 500
			if one {
				rec.SetDGID(f.GID(7, 1))
				mask |= madsa.PathDGID
				want = 1
			}
			got := make(chan int, 1)
			c.Do(&Query{Method: mad.MethodGetTable, Attr: madsa.AttrPathRecord, Mask: mask, Data: rec[:], Gap: 10 * time.Second}, func(r *Result) {
				n := 0
				for range madsa.Records(r.Message, len(rec)) {
					n++
				}
				if r.Err != nil || r.Partial {
					t.Errorf("%+v", r.Err)
				}
				got <- n
			})
			if n := <-got; n != want {
				t.Errorf("%d records, want %d", n, want)
			}
		}
	})
}

// Subscribe, hear a Report, answer it so that the SA does not repeat it.
func TestReport(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 10}, Config{}, func(t *testing.T, f *fabric.Fabric, c *Client) {
		gids := make(chan mad.GID, 4)
		c.Handle(mad.ClassSA, func(s *ring.Slot) {
			if s.MAD().Method() != mad.MethodReport || s.MAD().AttrID() != madsa.AttrNotice {
				t.Errorf("method %#x", s.MAD().Method())
				return
			}
			gids <- madsa.Event(s.MAD()).GID()
			s.MAD().SetMethod(mad.MethodReportResp)
			c.Reply(s)
		})
		var in madsa.InformInfo
		in.SetLIDRange(0xffff, 0)
		in.SetGeneric(true)
		in.SetSubscribe(true)
		in.SetType(0xffff)
		in.SetTrap(65)
		in.SetQPNTime(1, 19)
		in.SetProducer(0xffffff)
		errs := make(chan error, 1)
		c.Do(&Query{Method: mad.MethodSet, Attr: madsa.AttrInformInfo, Data: in[:]}, func(r *Result) { errs <- r.Err })
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		if err := f.SetPort(3, 1, mad.PortDown); err != nil {
			t.Fatal(err)
		}
		if g := <-gids; g != f.GID(3, 1) {
			t.Errorf("report about %v", g)
		}
		time.Sleep(10 * time.Second)
		if st := f.Stats(); st.Reports != 1 || len(gids) != 0 {
			t.Errorf("%d reports", st.Reports)
		}
	})
}

// Field case 76 on the fabric, and no answer from a port whose link is down.
func TestGoneOnFabric(t *testing.T) {
	onFabric(t, fabric.Config{Nodes: 10, Delay: time.Millisecond}, Config{}, func(t *testing.T, f *fabric.Fabric, c *Client) {
		ch := askNode(t, f, c, 3)
		synctest.Wait()
		if err := f.RemoveDevice(0); err != nil {
			t.Fatal(err)
		}
		if o := <-ch; !errors.Is(o.err, transport.ErrGone) {
			t.Error(o.err)
		}
		<-c.Done()
	})
}

// BenchmarkFabric is a path query through the embedded fabric, its SA included.
func BenchmarkFabric(b *testing.B) {
	f, err := fabric.New(fabric.Config{Nodes: 1000})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	p, err := f.Open(fabric.DeviceName, 1)
	if err != nil {
		b.Fatal(err)
	}
	c := Open(p, fabricInfo(f), Config{}, nil)
	defer c.Close()
	var rec madsa.PathRecord
	rec.SetSGID(f.GID(0, 1))
	rec.SetDGID(f.GID(7, 1))
	left, open := b.N, 0
	end := make(chan struct{})
	var done func(*Result)
	next := func() {
		for open < 32 && left > 0 {
			left--
			open++
			c.Path(madsa.PathSGID|madsa.PathDGID, &rec, done)
		}
	}
	done = func(r *Result) {
		if r.Err != nil {
			panic(r.Err)
		}
		if open--; open == 0 && left == 0 {
			close(end)
			return
		}
		next()
	}
	b.ReportAllocs()
	b.ResetTimer()
	if err := c.Post(next); err != nil {
		b.Fatal(err)
	}
	<-end
}

// frozen is a port whose reader does not run for ten seconds after its first
// deadlines: its processor was given to others, or the machine was stopped.
type frozen struct {
	transport.Port
	left int
}

func (p *frozen) Recv(slots []*ring.Slot, deadline time.Time) (int, error) {
	n, err := p.Port.Recv(slots, deadline)
	if n == 0 && err == nil && p.left > 0 && !deadline.IsZero() && !time.Now().Before(deadline) {
		p.left--
		time.Sleep(10 * time.Second)
	}
	return n, err
}

// While this process does not run the SA is not silent: what it has answered counts,
// and what waits for a place in the window is asked.
func TestKeptFromRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := fabric.New(fabric.Config{Nodes: 10, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		f.AddRule(fabric.Rule{Class: mad.ClassSA, On: fabric.Deliveries, Delay: 2 * time.Second, Count: 2})
		p, err := f.Open(fabric.DeviceName, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := Open(&frozen{p, 4}, fabricInfo(f), Config{Depth: 2}, nil)
		begin := time.Now()
		var all []<-chan outcome
		for n := range 3 {
			all = append(all, askNode(t, f, c, n+1))
		}
		for i, ch := range all {
			if o := <-ch; o.err != nil || o.tries != 1 {
				t.Errorf("question %d: %v after %d tries and %v", i, o.err, o.tries, o.at.Sub(begin))
			}
		}
		if st := c.Stats(); st.Timeouts != 0 || st.Answers != 3 {
			t.Errorf("%+v", st)
		}
		c.Close()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}
