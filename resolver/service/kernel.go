// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"acmd/resolver/config"
	"acmd/resolver/kernelnl"

	"golang.org/x/sys/unix"
)

// rdmaClass is there once the kernel's RDMA core is. To ask netlink before that
// would load the module on a machine that has no use for it.
const rdmaClass = "/sys/class/infiniband"

// kernelRetry is how often a socket is tried again: the adapter's driver may come
// after the daemon.
const kernelRetry = 2 * time.Second

// kernelDoor keeps a door for the kernel's requests open.
type kernelDoor struct {
	open func() (kernelnl.Conn, error)
	cfg  kernelnl.Config
	stop chan struct{}
	done chan struct{}

	mu   sync.Mutex
	door *kernelnl.Door // nil: there is none
	err  error          // why there is none
}

// startKernel serves the kernel's path requests on the socket that the service
// manager passed, or on one of its own. Only a daemon on the kernel's adapters
// has answers to them. That there is no socket is no error, as programs are
// served all the same.
func (d *Daemon) startKernel(s *config.Settings, passed []int) {
	if kind, _, _ := strings.Cut(d.fabric.Name(), "+"); kind != "umad" {
		if len(passed) > 0 {
			d.log.Warn("kernel: path requests wait in vain, this fabric is not the kernel's", "fabric", d.fabric.Name())
		}
		closeAll(passed)
		return
	}
	open := func() (kernelnl.Conn, error) {
		if len(passed) > 0 {
			fd := passed[0]
			closeAll(passed[1:]) // one is enough, and a second one would be told everything too
			passed = nil
			return kernelnl.Adopt(fd)
		}
		return openKernel()
	}
	d.kernel = serveKernel(open, kernelRetry, kernelnl.Config{
		Engine: d.engine, Static: d.preload, Wait: s.KernelTimeout, Log: d.log, Counters: d.counters.Shard(),
	})
	d.onStop(d.kernel.close)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func openKernel() (kernelnl.Conn, error) {
	if _, err := os.Stat(rdmaClass); errors.Is(err, fs.ErrNotExist) {
		return nil, kernelnl.ErrNoRDMA
	}
	return kernelnl.Open()
}

// serveKernel opens a door and opens it again whenever it ends. open is called
// once before it returns, so that a socket that is to be had serves from then on.
func serveKernel(open func() (kernelnl.Conn, error), retry time.Duration, cfg kernelnl.Config) *kernelDoor {
	k := &kernelDoor{open: open, cfg: cfg, stop: make(chan struct{}), done: make(chan struct{})}
	k.try()
	go k.run(retry)
	return k
}

func (k *kernelDoor) run(retry time.Duration) {
	defer close(k.done)
	t := time.NewTimer(retry)
	defer t.Stop()
	for {
		t.Stop()
		ended := k.ended()
		if ended == nil {
			t.Reset(retry) // while the kernel is served nothing wakes up for it
		}
		select {
		case <-k.stop:
			return
		case <-ended:
			k.lost()
		case <-t.C:
			k.try()
		}
	}
}

// ended returns the Done of the door, nil when there is none.
func (k *kernelDoor) ended() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.door == nil {
		return nil
	}
	return k.door.Done()
}

// lost forgets a door that has ended by itself.
func (k *kernelDoor) lost() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err, k.door = k.door.Err(), nil
	k.cfg.Log.Error("kernel: path requests are not answered any more, trying again", "err", k.err)
}

// try opens the door, and says once why it cannot. Only serveKernel and the
// goroutine call it, when there is none.
func (k *kernelDoor) try() {
	conn, err := k.open()
	var door *kernelnl.Door
	if err == nil {
		door = kernelnl.New(conn, k.cfg)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	news := err != nil && (k.err == nil || k.err.Error() != err.Error())
	k.door, k.err = door, err
	switch {
	case err == nil:
		k.cfg.Log.Info("serving the kernel", "wait", k.cfg.Wait)
	case news && errors.Is(err, kernelnl.ErrNoRDMA):
		k.cfg.Log.Info("kernel: no path requests to answer yet", "why", err)
	case news:
		k.cfg.Log.Warn("kernel: path requests are not answered, trying again", "err", err)
	}
}

// close ends the door; the kernel is told that what it waits for will not come.
func (k *kernelDoor) close() error {
	close(k.stop)
	<-k.done
	if k.door == nil {
		return nil
	}
	return k.door.Close()
}

// stats returns the counters of the door, if there is one.
func (k *kernelDoor) stats() (st kernelnl.Stats, ok bool) {
	if k == nil {
		return st, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.door == nil {
		return st, false
	}
	return k.door.Stats(), true
}

// state is what `acmctl state` shows.
func (k *kernelDoor) state() any {
	if k == nil {
		return map[string]string{"error": "not on this fabric"}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.door == nil {
		return map[string]string{"error": k.err.Error()}
	}
	return k.door.Stats()
}
