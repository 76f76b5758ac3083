// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"acmd/resolver/rtnl"

	"golang.org/x/sys/unix"
)

// script is a notifier: what is sent to it comes out of Receive, a message type or
// an error.
type script struct {
	say    chan any
	closed chan struct{}
}

func newScript() *script { return &script{say: make(chan any), closed: make(chan struct{})} }

func (s *script) Receive(deadline time.Time, each func(*rtnl.Message)) error {
	var late <-chan time.Time
	if !deadline.IsZero() {
		late = time.After(time.Until(deadline))
	}
	select {
	case x := <-s.say:
		if err, ok := x.(error); ok {
			return err
		}
		each(&rtnl.Message{Type: uint16(x.(int))})
		return nil
	case <-late:
		return rtnl.ErrDeadline
	case <-s.closed:
		return os.ErrClosed
	}
}

func (s *script) Close() error {
	close(s.closed)
	return nil
}

// watched is a Host under watch, and how often it told of changes.
func watched(t *testing.T) (h *Host, s *script, told *atomic.Int32) {
	t.Helper()
	h, s, told = parseTable(t, oneLink).host(), newScript(), new(atomic.Int32)
	if err := h.watchBy(s, func() { told.Add(1) }); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if n := told.Load(); n != 1 {
		t.Fatalf("told %d times when the watch began, want once: earlier changes are in no notification", n)
	}
	return h, s, told
}

// Every notification raises the generation; only those of links and addresses are a
// reason to look. The first is told at once, a thousand behind it as few times as
// the spacing allows, and the last is never forgotten.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, told := watched(t)
		if _, err := h.Addresses(); err != nil { // what the first call asks for
			t.Fatal(err)
		}
		g := h.Generation().Load()
		if _, err := h.Addresses(); err != nil || h.Generation().Load() != g {
			t.Errorf("a look that found nothing new raised the generation, %v", err)
		}
		for _, typ := range []int{unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWNEXTHOP} {
			s.say <- typ
			synctest.Wait()
			if n := h.Generation().Load(); n == g {
				t.Errorf("message %d did not raise the generation", typ)
			} else {
				g = n
			}
		}
		if n := told.Load(); n != 1 {
			t.Errorf("told %d times after routes and rules", n)
		}
		time.Sleep(time.Second)
		for i, typ := range []int{unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR} {
			s.say <- typ
			synctest.Wait()
			if n := int(told.Load()); n != i+2 || h.Generation().Load() == g {
				t.Errorf("message %d: told %d times, generation %d", typ, n, h.Generation().Load())
			}
			g = h.Generation().Load()
			time.Sleep(spacing)
		}
		told.Store(0)
		const many, apart = 1000, time.Millisecond
		for range many {
			s.say <- unix.RTM_NEWADDR
			time.Sleep(apart)
		}
		time.Sleep(spacing)
		if n := time.Duration(told.Load()); n < many*apart/spacing || n > many*apart/spacing+1 {
			t.Errorf("told %d times of %d changes in %v", n, many, many*apart)
		}
		if st := h.Stats(); !st.Watching || st.Events != many+9 || st.Overruns != 0 || st.Looks != 2 {
			t.Errorf("%+v", st)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if h.Stats().Watching {
			t.Error("watching after Close")
		}
	})
}

// field case 18: what was lost may have been anything.
func TestWatchOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, told := watched(t)
		defer h.Close()
		time.Sleep(time.Second)
		g := h.Generation().Load()
		for range 3 {
			s.say <- rtnl.ErrOverrun
			synctest.Wait()
			if h.Generation().Load() == g {
				t.Error("an overrun did not raise the generation")
			}
			g = h.Generation().Load()
		}
		time.Sleep(time.Second)
		if n := told.Load(); n != 3 {
			t.Errorf("told %d times, want at the start, at once and after the spacing", n)
		}
		if st := h.Stats(); st.Overruns != 3 || !st.Watching {
			t.Errorf("%+v", st)
		}
	})
}

// When the watch breaks, each look raises the generation again, and another watch
// may follow.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, told := watched(t)
		if err := h.watchBy(newScript(), nil); err == nil {
			t.Error("two watches")
		}
		before := told.Load()
		s.say <- errors.New("broken")
		<-s.closed
		synctest.Wait()
		if told.Load() != before+1 || h.Stats().Watching {
			t.Errorf("told %d times, %+v", told.Load(), h.Stats())
		}
		g := h.Generation().Load()
		if _, err := h.Addresses(); err != nil || h.Generation().Load() == g {
			t.Errorf("generation %d, %v", h.Generation().Load(), err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if err := h.watchBy(newScript(), func() {}); err != nil {
			t.Error(err)
		}
		h.Close()
	})
}
