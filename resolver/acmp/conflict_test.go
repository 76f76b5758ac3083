// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/fabric"
	"acmd/mad/ring"
	"acmd/mad/transport"
)

// logTo replaces the source's log from now on.
func (nd *node) logTo() *bytes.Buffer {
	var b bytes.Buffer
	nd.src.log = slog.New(slog.NewTextHandler(&b, nil))
	return &b
}

// Two nodes answer for one name: the first answer counts, and the second is told
// once a minute. A second copy of the first answer is no conflict.
func TestTwoAnswers(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 6, Silent: 6}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{Retries: 2})
		defer nd.stop()
		lines := nd.logTo()
		group := fabric.ACMGroup(0xffff)
		answer := func(from int, tid mad.TID) {
			t.Helper()
			var m mad.Packet
			acm.InitResponse(&m, tid, group)
			if err := f.Unicast(from, 1, f.LID(0, 1), nd.client.Caps().QPN, &m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for i := range 2 {
			ch := nd.locate(v4(3), 12*time.Second)
			synctest.Wait()
			tid := log.sent()[i].MAD.TID()
			answer(3, tid)
			if got := <-ch; got.err != nil || got.LID != f.LID(3, 1) {
				t.Error(got)
			}
			answer(3, tid)
			if n := nd.stats().Conflicts; n != uint64(i) {
				t.Errorf("%d conflicts after a second copy", n)
			}
			answer(4, tid)
			if n := nd.stats().Conflicts; n != uint64(i+1) {
				t.Errorf("%d conflicts after an answer of another node", n)
			}
			answer(4, tid^1) // to nothing
		}
		if s := lines.String(); strings.Count(s, "claimed by two nodes") != 1 || !strings.Contains(s, f.GID(4, 1).String()) || !strings.Contains(s, f.GID(3, 1).String()) {
			t.Errorf("log:\n%s", s)
		}
		// Much later it may be another node's name.
		time.Sleep(time.Minute)
		answer(4, log.sent()[0].MAD.TID())
		if n := nd.stats().Conflicts; n != 2 {
			t.Errorf("%d conflicts", n)
		}
	})
}

// Another node asks under an address of ours: it is answered, and the conflict is
// told. It changes nothing here.
func TestOwnAddressClaimed(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 6}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		lines := nd.logTo()
		group := fabric.ACMGroup(0xffff)
		for range 3 {
			if err := f.Multicast(3, 1, group, request(t, v4(0), v4(0), group)); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Multicast(3, 1, group, request(t, v4(0), v4(3), group)); err != nil {
			t.Fatal(err)
		}
		if st := nd.stats(); st.Conflicts != 3 || st.Answered != 4 {
			t.Errorf("%+v", st)
		}
		if s := lines.String(); strings.Count(s, "claimed by two nodes") != 1 || !strings.Contains(s, fabric.IPv4(0, 1).String()) {
			t.Errorf("log:\n%s", s)
		}
	})
}

// arrives hands a datagram to the source as the port would.
func (nd *node) arrives(t *testing.T, m *mad.Packet, lid mad.LID, gid mad.GID) {
	t.Helper()
	r, err := ring.New(1, true)
	if err != nil {
		t.Fatal(err)
	}
	s := r.Get()
	*s.MAD(), *s.Header() = *m, mad.UserHeader{}
	h := s.Header()
	h.SetLength(ring.SlotSize)
	h.SetLID(lid)
	h.SetGID(gid)
	h.SetQPN(0x400)
	done := make(chan struct{})
	if err := nd.client.Post(func() {
		(*nd.src.byKey.Load())[portKey{fabric.DeviceName, 1}].receive(s)
		close(done)
	}); err != nil {
		t.Fatal(err)
	}
	<-done
	s.Release()
	r.Retire()
}

// Field case 59: an adapter may bring a multicast back to its sender. Such a
// request is no other node's: it is neither answered nor learned from.
func TestEcho(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4, Silent: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		me := v4(0)
		ch := nd.locate(me, 3*time.Second) // by another node's mistake, or with loopback off
		synctest.Wait()
		sent := log.sent()[0].MAD
		nd.arrives(t, &sent, f.LID(0, 1), f.GID(0, 1))
		if st := nd.stats(); st.Refused["echo"] != 1 || st.Heard != 0 || st.Answered != 0 || st.Conflicts != 0 || st.Found != 0 || len(ch) != 0 {
			t.Errorf("%+v", st)
		}
		// The same request from another node is one of that node's.
		if err := f.Multicast(2, 1, fabric.ACMGroup(0xffff), &sent); err != nil {
			t.Fatal(err)
		}
		if st := nd.stats(); st.Refused["echo"] != 1 || st.Answered != 1 || st.Conflicts != 1 || len(ch) != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// What comes in one partition cannot speak for another, whatever groups it names.
func TestForeignPartition(t *testing.T) {
	keys := func(int) []mad.PKey { return []mad.PKey{0xffff, 0x8002} }
	inBubble(t, fabric.Config{Nodes: 4, PKeys: keys, Silent: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{})
		defer nd.stop()
		other := acm.MGID(0x8002, 0, 3, 4)
		if err := f.Multicast(3, 1, fabric.ACMGroup(0xffff), request(t, v4(0), v4(3), other)); err != nil {
			t.Fatal(err)
		}
		if st := nd.stats(); st.Refused["partition"] != 1 || st.Answered != 0 {
			t.Errorf("%+v", st)
		}
		ch := nd.locateOn(1, v4(3), 3*time.Second)
		synctest.Wait()
		var m mad.Packet
		acm.InitResponse(&m, log.sent()[0].MAD.TID(), other)
		// Sent in the partition that both share first, which is the default one.
		if err := f.Unicast(3, 1, f.LID(0, 1), nd.client.Caps().QPN, &m); err != nil {
			t.Fatal(err)
		}
		if st := nd.stats(); st.Refused["partition"] != 2 || len(ch) != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Which of the three a node is, is logged once.
func TestSaysWhatItIs(t *testing.T) {
	for _, c := range []struct {
		caps transport.Caps
		text string
	}{
		{transport.Caps{}, "neither asks nor answers"},
		{transport.Caps{Multicast: true, QPN: mad.QP1}, "out of QP1"},
		{transport.Caps{Multicast: true, Listens: true, QPN: 0x123}, "asks other nodes and answers them"},
	} {
		var b bytes.Buffer
		s := New(Config{}, slog.New(slog.NewTextHandler(&b, nil)))
		for range 3 {
			s.say(&port{key: portKey{"mlx5_0", 1}, caps: c.caps})
		}
		if strings.Count(b.String(), "\n") != 1 || !strings.Contains(b.String(), c.text) {
			t.Errorf("%+v: %s", c.caps, b.String())
		}
	}
}
