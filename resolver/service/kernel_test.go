// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad/madtest"
	"acmd/resolver"
	"acmd/resolver/kernelnl"
	"acmd/resolver/kernelnl/kernelfake"

	"golang.org/x/sys/unix"
)

// hits is an engine that has every path.
type hits struct{ resolver.Resolver }

func (hits) Now() int64 { return 0 }
func (hits) Lookup(q *resolver.Query, _ int64, a *resolver.Answer) bool {
	a.Status, a.Path = resolver.StatusSuccess, q.Path
	return true
}

// opener is what the door opens, changed while it tries.
type opener struct {
	mu     sync.Mutex
	kernel *kernelfake.Kernel
	err    error
	opens  int
	log    madtest.Output
}

func (o *opener) open() (kernelnl.Conn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opens++
	return o.kernel, o.err
}

func (o *opener) set(k *kernelfake.Kernel, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kernel, o.err = k, err
}

func (o *opener) count() int { o.mu.Lock(); defer o.mu.Unlock(); return o.opens }

func asked(k *kernelfake.Kernel) kernelfake.Outcome {
	return k.Resolve(kernelfake.Resolve{Device: "sib1", Port: 1, DGID: [16]byte{0xfe, 0x80, 15: 7}}).Wait()
}

// The socket is tried again until it is to be had, and after it broke. Each reason
// is said once.
func TestKernelDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := kernelfake.New(), kernelfake.New()
		o := &opener{}
		o.set(first, kernelnl.ErrNoRDMA)
		k := serveKernel(o.open, time.Second, kernelnl.Config{
			Engine: hits{}, Wait: 300 * time.Millisecond, Log: o.log.Logger()})
		time.Sleep(3500 * time.Millisecond)
		if n := o.count(); n != 4 {
			t.Errorf("tried %d times in 3.5 s", n)
		}
		if s, ok := k.state().(map[string]string); !ok || s["error"] != kernelnl.ErrNoRDMA.Error() {
			t.Errorf("state %v", k.state())
		}
		o.set(first, unix.EPERM)
		time.Sleep(3 * time.Second)
		o.set(first, nil)
		time.Sleep(time.Second)
		if o := asked(first); o != kernelfake.Answered {
			t.Errorf("outcome %d", o)
		}
		if w := first.Timeout(); w != 300*time.Millisecond {
			t.Errorf("the kernel waits %v", w)
		}
		before := o.count()
		time.Sleep(10 * time.Second)
		if o.count() != before {
			t.Error("opened again for nothing")
		}
		o.set(second, nil)
		first.Break(errors.New("broken"))
		time.Sleep(2 * time.Second)
		if o := asked(second); o != kernelfake.Answered {
			t.Errorf("after the socket broke: outcome %d", o)
		}
		synctest.Wait() // an answer is counted when it has been sent
		if s, ok := k.state().(kernelnl.Stats); !ok || s.Answered != 1 {
			t.Errorf("state %+v", k.state())
		}
		if err := k.close(); err != nil {
			t.Error(err)
		}
		if !first.Closed() || !second.Closed() {
			t.Error("sockets are left open")
		}
		for text, n := range map[string]int{"to answer yet": 1, "not permitted": 1, "serving the kernel": 2, "not answered any more": 1} {
			if got := o.log.Count(text); got != n {
				t.Errorf("%q is in the log %d times, want %d:\n%s", text, got, n, &o.log)
			}
		}
	})
}

// A door that never was is closed too.
func TestKernelDoorNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := serveKernel(func() (kernelnl.Conn, error) { return nil, kernelnl.ErrNoRDMA }, time.Second,
			kernelnl.Config{Log: slog.New(slog.DiscardHandler)})
		if err := k.close(); err != nil {
			t.Error(err)
		}
	})
}
