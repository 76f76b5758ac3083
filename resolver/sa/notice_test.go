// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
)

var allTraps = []uint16{64, 65, 66, 67, 144}

// listener keeps what a subscription tells.
type listener struct {
	mu      sync.Mutex
	notices []madsa.Notice
	states  []string
}

func (l *listener) subscription(traps ...uint16) Subscription {
	return Subscription{Traps: traps,
		Notice: func(n *madsa.Notice) { l.mu.Lock(); defer l.mu.Unlock(); l.notices = append(l.notices, *n) },
		State: func(on bool, gap time.Duration) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.states = append(l.states, fmt.Sprint(on, " ", gap.Round(time.Second)))
		}}
}

func (l *listener) traps() (list []uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.notices {
		list = append(list, l.notices[i].Trap())
	}
	return list
}

// state returns what was said last.
func (l *listener) state() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.states) == 0 {
		return ""
	}
	return l.states[len(l.states)-1]
}

// onReports runs test in a bubble on a scripted port that receives Reports.
func onReports(t *testing.T, script func(*scriptPort, *sent) error, test func(*testing.T, *scriptPort, *Client, *listener, *bytes.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, script)
		p.caps = transport.Caps{Reports: true, QPN: mad.QP1}
		var log bytes.Buffer
		c := Open(p, activeInfo(), Config{Retries: 3, RetryNoRecords: 1}, slog.New(slog.NewTextHandler(&log, nil)))
		l := &listener{}
		if err := c.Subscribe(l.subscription(allTraps...)); err != nil {
			t.Fatal(err)
		}
		test(t, p, c, l, &log)
		closeAll(t, c, p)
	})
}

// accept is an SA that takes every subscription.
func accept(p *scriptPort, s *sent) error {
	if !s.mad.IsResponse() && s.hdr.TimeoutMS() != 0 {
		p.answer(s, time.Millisecond, reply(s))
	}
	return nil
}

// informs returns the traps that a port was asked to subscribe to, negative where
// it was asked to end that.
func informs(p *scriptPort) (list []int) {
	for _, s := range p.sends() {
		if s.mad.AttrID() == madsa.AttrInformInfo && s.mad.Method() == mad.MethodSet {
			in := madsa.Inform(&s.mad)
			n := int(in.Trap())
			if in.Subscribe() == 0 {
				n = -n
			}
			list = append(list, n)
		}
	}
	return list
}

// report is a Report as the SM sends it.
func report(from mad.LID, qpn mad.QPN, trap uint16, about mad.GID) *message {
	var m mad.Packet
	madsa.Init(&m, mad.MethodReport, madsa.AttrNotice, 0)
	m.SetTID(0x77000001)
	n := madsa.Event(&m)
	n.SetGeneric(madsa.NoticeSubnetMgmt, madsa.ProducerClassManager)
	n.SetTrap(trap)
	n.SetIssuerLID(from)
	n.SetGID(about)
	msg := &message{mad: m[:]}
	msg.hdr.SetLID(from)
	msg.hdr.SetQPN(qpn)
	msg.hdr.SetPKeyIndex(2)
	msg.hdr.SetLength(mad.UserHeaderSize + mad.PacketSize)
	return msg
}

// The bytes of a subscription are those that were seen to work with OpenSM, and
// the end of it differs in one.
func TestInformInfoBytes(t *testing.T) {
	onReports(t, accept, func(t *testing.T, p *scriptPort, c *Client, _ *listener, _ *bytes.Buffer) {
		time.Sleep(3 * time.Second)
		in := c.informInfo(65, true)
		if got, want := hex.EncodeToString(in[:]), strings.Repeat("00", 16)+"ffff0000"+"0000"+"01"+"01"+"ffff"+"0041"+"00000113"+"00ffffff"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if off := c.informInfo(65, false); off[23] != 0 || !bytes.Equal(off[:23], in[:23]) || !bytes.Equal(off[24:], in[24:]) {
			t.Errorf("unsubscribe %x", off)
		}
		s := p.sends()[1]
		if madsa.Mask(&s.mad) != 0 || s.hdr.LID() != 1 || s.hdr.SL() != 3 || s.hdr.QPN() != mad.QP1 {
			t.Errorf("sent to LID %v SL %d with mask %v", s.hdr.LID(), s.hdr.SL(), madsa.Mask(&s.mad))
		}
	})
}

// All traps are subscribed to once, one after the other; each Report is handed on
// and answered with itself to where it came from; the end of the client ends the
// subscription.
func TestSubscribeAndReport(t *testing.T) {
	onReports(t, accept, func(t *testing.T, p *scriptPort, c *Client, l *listener, _ *bytes.Buffer) {
		time.Sleep(3 * time.Second)
		if got := informs(p); !slices.Equal(got, []int{64, 65, 66, 67, 144}) {
			t.Errorf("subscribed to %v", got)
		}
		if st := c.Stats(); st.Subscribed != 5 || l.state() != "true 0s" && l.state() != "true 1s" {
			t.Errorf("%d subscribed, %q", st.Subscribed, l.state())
		}
		r := report(1, mad.QP1, 65, gid(9))
		p.deliver(0, r)
		time.Sleep(time.Millisecond)
		if got := l.traps(); !slices.Equal(got, []uint16{65}) || l.notices[0].GID() != gid(9) {
			t.Fatalf("notices %v", got)
		}
		all := p.sends()
		a := all[len(all)-1]
		want := *(*mad.Packet)(r.mad)
		want.SetMethod(mad.MethodReportResp)
		if a.mad != want || a.hdr.LID() != 1 || a.hdr.QPN() != mad.QP1 || a.hdr.TimeoutMS() != 0 || a.hdr.PKeyIndex() != 2 {
			t.Errorf("answered LID %v QP %v: %x", a.hdr.LID(), a.hdr.QPN(), a.mad[:80])
		}
		c.Close()
		if got := informs(p)[5:]; !slices.Equal(got, []int{-64, -65, -66, -67, -144}) {
			t.Errorf("at the end %v", got)
		}
	})
}

// Only the SM's Reports are believed, and only whole ones of the right kind.
func TestForeignReports(t *testing.T) {
	onReports(t, accept, func(t *testing.T, p *scriptPort, c *Client, l *listener, _ *bytes.Buffer) {
		time.Sleep(3 * time.Second)
		before := len(p.sends())
		p.deliver(0, report(2, mad.QP1, 65, gid(9)))
		p.deliver(0, report(1, 77, 65, gid(9)))
		bad := map[string]func(*mad.Packet){
			"class version": func(m *mad.Packet) { m[2] = 1 },
			"base version":  func(m *mad.Packet) { m[0] = 2 },
			"method":        func(m *mad.Packet) { m.SetMethod(mad.MethodSet) },
			"attribute":     func(m *mad.Packet) { m.SetAttrID(madsa.AttrInformInfo) },
		}
		for _, f := range bad {
			r := report(1, mad.QP1, 65, gid(9))
			f((*mad.Packet)(r.mad))
			p.deliver(0, r)
		}
		short := report(1, mad.QP1, 65, gid(9))
		short.hdr.SetLength(mad.UserHeaderSize + 100)
		p.deliver(0, short)
		time.Sleep(time.Second)
		st := c.Stats()
		if got := l.traps(); len(got) != 0 || st.ReportsForeign != 2 || st.Malformed != uint64(len(bad))+1 || st.Reports != 0 {
			t.Errorf("notices %v, %+v", got, st)
		}
		if n := len(p.sends()) - before; n != 0 {
			t.Errorf("%d of them were answered", n)
		}
	})
}

// What makes the SM forget makes the client subscribe again, spread and once: a
// reregistration, another SM, another LID, a port that was down. A swarm of those
// is one.
func TestSubscribeAgain(t *testing.T) {
	onReports(t, accept, func(t *testing.T, p *scriptPort, c *Client, l *listener, _ *bytes.Buffer) {
		time.Sleep(3 * time.Second)
		rounds := 1
		again := func(what string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			rounds++
			if n := len(informs(p)); n != rounds*len(allTraps) {
				t.Errorf("%s: %d requests, want %d rounds of %d", what, n, rounds, len(allTraps))
			}
			if c.Stats().Subscribed != len(allTraps) || !strings.HasPrefix(l.state(), "true") {
				t.Errorf("%s: %q", what, l.state())
			}
		}
		c.Reregister()
		again("reregister")
		for range 50 {
			c.Reregister()
		}
		again("a swarm")
		info := activeInfo()
		info.SMLID = 9
		c.Update(info)
		again("another SM")
		if s := p.sends(); s[len(s)-1].hdr.LID() != 9 {
			t.Errorf("asked LID %v", s[len(s)-1].hdr.LID())
		}
		info.LID = 44
		c.Update(info)
		again("another LID")
		down := info
		down.State = mad.PortDown
		c.Update(down)
		c.Reregister() // field case 6: not to be lost
		time.Sleep(time.Minute)
		if n := len(informs(p)); n != rounds*len(allTraps) || c.Stats().Subscribed != 0 {
			t.Errorf("port down: %d requests, %d subscribed", n, c.Stats().Subscribed)
		}
		c.Update(info)
		again("port up")
		if got := l.state(); got != "true 1m0s" && got != "true 1m1s" && got != "true 1m2s" {
			t.Errorf("gap of a minute: %q", got)
		}
	})
}

// A reregistration is not lost when the queue of what was posted is full.
func TestReregisterBehindFullQueue(t *testing.T) {
	onReports(t, accept, func(t *testing.T, p *scriptPort, c *Client, _ *listener, _ *bytes.Buffer) {
		time.Sleep(3 * time.Second)
		hold := make(chan struct{})
		if err := c.Post(func() { <-hold }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for c.Post(func() {}) == nil {
		}
		c.Reregister()
		close(hold)
		time.Sleep(3 * time.Second)
		if n := len(informs(p)); n != 2*len(allTraps) {
			t.Errorf("%d requests, want 2 rounds of %d", n, len(allTraps))
		}
	})
}

// An SA that does not take subscriptions is asked again with growing pauses, says
// so once in the log, and gets its turn when it does.
func TestSubscribeFails(t *testing.T) {
	var mu sync.Mutex
	well := false
	script := func(p *scriptPort, s *sent) error {
		mu.Lock()
		defer mu.Unlock()
		if well {
			return accept(p, s)
		}
		if s.hdr.TimeoutMS() != 0 {
			p.answer(s, time.Millisecond, status(s, 0x0100)) // no resources
		}
		return nil
	}
	onReports(t, script, func(t *testing.T, p *scriptPort, c *Client, l *listener, log *bytes.Buffer) {
		time.Sleep(time.Hour)
		all := p.sends()
		if n := len(all); n < 60 || n > 120 {
			t.Errorf("%d tries in an hour", n)
		}
		for i := 1; i < len(all); i++ {
			if gap := all[i].at.Sub(all[i-1].at); gap < minRenewPause || gap > 2*maxRenewPause {
				t.Errorf("gap %v before try %d", gap, i)
			}
		}
		if st := c.Stats(); st.Subscribed != 0 || st.SubscribeErrors != uint64(len(all)) || l.state() != "" {
			t.Errorf("%+v, %q", st, l.state())
		}
		mu.Lock()
		well = true
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		if st := c.Stats(); st.Subscribed != 5 || !strings.HasPrefix(l.state(), "true 1h") {
			t.Errorf("%d subscribed, %q", st.Subscribed, l.state())
		}
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("log:\n%s", log)
		}
	})
}

// A silent SA and one that answers late change nothing in that: one round in the
// end, and no request that nobody waits for.
func TestSubscribeToSilence(t *testing.T) {
	onReports(t, nil, func(t *testing.T, p *scriptPort, c *Client, l *listener, _ *bytes.Buffer) {
		time.Sleep(10 * time.Minute)
		p.mu.Lock()
		p.script = accept
		p.mu.Unlock()
		c.Reregister()
		time.Sleep(5 * time.Second)
		if st := c.Stats(); st.Subscribed != 5 {
			t.Errorf("%+v", st)
		}
	})
}

// A port without the Report method asks for nothing and says so once.
func TestNoReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, accept)
		var log bytes.Buffer
		c := Open(p, activeInfo(), Config{}, slog.New(slog.NewTextHandler(&log, nil)))
		l := &listener{}
		if err := c.Subscribe(l.subscription(allTraps...)); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			c.Reregister()
			time.Sleep(time.Minute)
		}
		if n := len(p.sends()); n != 0 || l.state() != "" || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%d sent, state %q, log %q", n, l.state(), &log)
		}
		closeAll(t, c, p)
	})
}

// The SA is asked now and then whether it still knows the subscription: one that
// does is left alone, one that does not is subscribed to again.
func TestVerifySubscription(t *testing.T) {
	var mu sync.Mutex
	knows, asked := true, 0
	script := func(p *scriptPort, s *sent) error {
		if s.mad.AttrID() != madsa.AttrInformInfoRecord {
			return accept(p, s)
		}
		mu.Lock()
		defer mu.Unlock()
		asked++
		if madsa.Mask(&s.mad) != 1 || mad.GID(s.mad[madsa.DataOffset:][:16]) != gid(4) || s.mad.Method() != mad.MethodGetTable {
			p.tb.Errorf("asked %x", s.mad[:80])
		}
		if knows {
			p.answer(s, time.Millisecond, reply(s))
		} else {
			p.answer(s, time.Millisecond, status(s, 0x0300))
			knows = true // by the subscriptions that follow
		}
		return nil
	}
	onReports(t, script, func(t *testing.T, p *scriptPort, c *Client, l *listener, _ *bytes.Buffer) {
		time.Sleep(time.Hour)
		mu.Lock()
		n := asked
		knows = false
		mu.Unlock()
		if n < 4 || n > 6 || len(informs(p)) != 5 {
			t.Errorf("asked %d times in an hour, %d subscriptions", n, len(informs(p)))
		}
		time.Sleep(13 * time.Minute)
		if n := len(informs(p)); n != 10 || c.Stats().Subscribed != 5 {
			t.Errorf("%d subscriptions after it forgot", n)
		}
		// It may have forgotten right after it was asked the last time.
		text, holds := strings.CutPrefix(l.state(), "true ")
		if gap, err := time.ParseDuration(text); !holds || err != nil || gap < 10*time.Minute || gap > 13*time.Minute {
			t.Errorf("told %q, want a gap of what lies between two questions", l.state())
		}
	})
}

// More Reports than anybody should send are not all taken, and that some were
// missed is told.
func TestReportFlood(t *testing.T) {
	onReports(t, accept, func(t *testing.T, p *scriptPort, c *Client, l *listener, _ *bytes.Buffer) {
		time.Sleep(3 * time.Second)
		const n = maxReports + 500
		for i := range n {
			p.deliver(0, report(1, mad.QP1, 65, gid(1000+i)))
		}
		time.Sleep(time.Millisecond)
		st := c.Stats()
		if st.Reports != maxReports || st.ReportsOver != n-maxReports || len(l.traps()) != maxReports {
			t.Errorf("%d taken, %d over", st.Reports, st.ReportsOver)
		}
		if got := l.state(); got != "true 1h0m0s" {
			t.Errorf("state %q", got)
		}
		time.Sleep(2 * time.Second)
		p.deliver(0, report(1, mad.QP1, 64, gid(5)))
		time.Sleep(time.Millisecond)
		if c.Stats().Reports != maxReports+1 {
			t.Error("nothing is taken in another second")
		}
	})
}

// "No records" about a port that is out of service is believed at once, about
// another one only when it is said again.
func TestGoneIsBelieved(t *testing.T) {
	script := func(p *scriptPort, s *sent) error {
		if s.mad.AttrID() == madsa.AttrPathRecord {
			p.answer(s, time.Millisecond, status(s, 0x0300))
			return nil
		}
		return accept(p, s)
	}
	onReports(t, script, func(t *testing.T, p *scriptPort, c *Client, l *listener, _ *bytes.Buffer) {
		time.Sleep(3 * time.Second)
		took := func(n int) time.Duration {
			begin := time.Now()
			return (<-ask(t, c, n)).at.Sub(begin)
		}
		p.deliver(0, report(1, mad.QP1, 65, gid(9)))
		time.Sleep(time.Millisecond)
		if gone, other := took(9), took(10); gone != time.Millisecond || other < MinGap {
			t.Errorf("gone: %v, other: %v", gone, other)
		}
		p.deliver(0, report(1, mad.QP1, 64, gid(9)))
		time.Sleep(time.Millisecond)
		if back := took(9); back < MinGap {
			t.Errorf("back: %v", back)
		}
	})
}

// Ports that go are remembered up to a bound.
func TestGoneIsBounded(t *testing.T) {
	onReports(t, accept, func(t *testing.T, p *scriptPort, c *Client, _ *listener, _ *bytes.Buffer) {
		for second := range 2 {
			time.Sleep(3 * time.Second)
			for i := range maxReports {
				p.deliver(0, report(1, mad.QP1, 65, gid(1000+second*maxReports+i)))
			}
		}
		time.Sleep(time.Millisecond)
		gone := make(chan int, 1)
		if err := c.Post(func() { gone <- len(c.notices.gone) }); err != nil {
			t.Fatal(err)
		}
		if n := <-gone; n == 0 || n > maxGone {
			t.Errorf("%d ports remembered", n)
		}
	})
}

// A port is out of service until it is told to be back, the SA has a path to it, or
// the notice of its return may have been missed.
func TestGoneNoMore(t *testing.T) {
	var found atomic.Bool
	script := func(p *scriptPort, s *sent) error {
		if s.mad.AttrID() == madsa.AttrPathRecord && !found.Load() {
			p.answer(s, time.Millisecond, status(s, 0x0300))
			return nil
		}
		return accept(p, s)
	}
	for name, back := range map[string]func(*testing.T, *scriptPort, *Client){
		"an answer": func(t *testing.T, _ *scriptPort, c *Client) {
			found.Store(true)
			if r := <-ask(t, c, 9); r.err != nil {
				t.Error(r.err)
			}
			found.Store(false)
		},
		"forgotten by the SM": func(_ *testing.T, _ *scriptPort, c *Client) { c.Reregister() },
		"too many Reports": func(_ *testing.T, p *scriptPort, _ *Client) {
			for i := range maxReports + 1 {
				p.deliver(0, report(1, mad.QP1, 66, gid(1000+i)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onReports(t, script, func(t *testing.T, p *scriptPort, c *Client, _ *listener, _ *bytes.Buffer) {
				time.Sleep(3 * time.Second)
				took := func() time.Duration {
					begin := time.Now()
					return (<-ask(t, c, 9)).at.Sub(begin)
				}
				p.deliver(0, report(1, mad.QP1, 65, gid(9)))
				time.Sleep(time.Millisecond)
				if gone := took(); gone != time.Millisecond {
					t.Errorf("gone: %v", gone)
				}
				back(t, p, c)
				time.Sleep(time.Millisecond)
				if took := took(); took < MinGap {
					t.Errorf("back: %v", took)
				}
			})
		})
	}
}

// With the SA of the embedded fabric: ports and groups that come and go are
// reported, through loss and to a new SM too, and no Report is left unanswered.
func TestNoticesOnFabric(t *testing.T) {
	for _, timers := range []bool{false, true} {
		onFabric(t, fabric.Config{Nodes: 20, Delay: time.Millisecond, Loss: 0.1, KernelTimers: timers}, Config{Retries: 5}, func(t *testing.T, f *fabric.Fabric, c *Client) {
			l := &listener{}
			if err := c.Subscribe(l.subscription(allTraps...)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			flap := func() {
				t.Helper()
				l.mu.Lock()
				l.notices = nil
				l.mu.Unlock()
				for _, st := range []mad.State{mad.PortDown, mad.PortActive} {
					if err := f.SetPort(7, 1, st); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Second)
				}
				if got := slices.Compact(l.traps()); !slices.Equal(got, []uint16{65, 64}) || l.notices[0].GID() != f.GID(7, 1) {
					t.Errorf("timers %v: notices %v", timers, got)
				}
			}
			flap()
			if err := f.MoveSM(13, false); err != nil {
				t.Fatal(err)
			}
			c.Update(fabricInfo(f))
			time.Sleep(time.Minute)
			flap()
			if st := f.Stats(); st.Reports == 0 || st.ReportsGivenUp != 0 {
				t.Errorf("timers %v: %d reports, %d given up", timers, st.Reports, st.ReportsGivenUp)
			}
		})
	}
}
