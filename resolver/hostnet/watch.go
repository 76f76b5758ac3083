// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package hostnet

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"acmd/resolver/rtnl"

	"golang.org/x/sys/unix"
)

// spacing is the least time between two calls that tell of changes. The first
// change is told at once; thousands in a row cost a few looks.
const spacing = 100 * time.Millisecond

// groups has everything that decides who owns an address and which source the
// kernel chooses. Labels of RFC 6724 (ip addrlabel) have no notification.
var groups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP,
}

type counters struct{ looks, events, overruns atomic.Uint64 }

// Stats counts what a Host did.
type Stats struct {
	Watching bool   `json:"watching"` // the kernel tells of changes
	Looks    uint64 `json:"looks"`
	Events   uint64 `json:"events"`   // notifications
	Overruns uint64 `json:"overruns"` // times that notifications were lost
}

// Stats returns the counters.
func (h *Host) Stats() Stats {
	return Stats{h.watch.Load() != nil, h.count.looks.Load(), h.count.events.Load(), h.count.overruns.Load()}
}

// notifier is an [rtnl.Monitor], or a test's.
type notifier interface {
	Receive(deadline time.Time, each func(*rtnl.Message)) error
	Close() error
}

type watcher struct {
	from    notifier
	changed func()
	done    chan struct{}
}

// Watch has the kernel tell of changes until Close. changed is called when it is
// time to look, from a goroutine of the Host; it must not block. Without a watch
// changes show when somebody looks.
func (h *Host) Watch(changed func()) error {
	m, err := rtnl.Listen(groups...)
	if err != nil {
		return err
	}
	return h.watchBy(m, changed)
}

func (h *Host) watchBy(from notifier, changed func()) error {
	w := &watcher{from: from, changed: changed, done: make(chan struct{})}
	if !h.watch.CompareAndSwap(nil, w) {
		return errors.Join(errors.New("hostnet: watched already"), from.Close())
	}
	h.gen.Raise() // what happened before is in no notification
	go h.follow(w)
	changed()
	return nil
}

// Close ends the watch, if there is one. The Host stays usable.
func (h *Host) Close() error {
	w := h.watch.Load()
	if w == nil {
		return nil
	}
	err := w.from.Close()
	<-w.done
	return err
}

// follow raises the generation at each notification, before anything else, and
// tells when to look.
func (h *Host) follow(w *watcher) {
	defer close(w.done)
	var told, due time.Time // due zero: nothing to tell
	for {
		any, look := false, false
		err := w.from.Receive(due, func(m *rtnl.Message) {
			h.count.events.Add(1)
			any = true
			switch m.Type {
			case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
				look = true
			}
		})
		switch {
		case err == nil, errors.Is(err, rtnl.ErrDeadline):
		case errors.Is(err, rtnl.ErrOverrun):
			h.count.overruns.Add(1)
			any, look = true, true
		default:
			h.watch.Store(nil) // from now on each look raises the generation
			h.gen.Raise()
			if !errors.Is(err, os.ErrClosed) {
				h.cfg.Log.Error("the kernel tells of network changes no more, they show at the next look", "err", err)
				w.from.Close()
				w.changed()
			}
			return
		}
		if any {
			h.gen.Raise()
		}
		now := time.Now()
		if look && due.IsZero() {
			due = told.Add(spacing)
		}
		if !due.IsZero() && !now.Before(due) {
			told, due = now, time.Time{}
			w.changed()
		}
	}
}
