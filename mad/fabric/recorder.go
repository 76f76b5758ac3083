// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"maps"
	"slices"
	"sync"
	"time"

	"acmd/mad"
	"acmd/mad/acm"
	"acmd/mad/sa"
)

// maxRecorded bounds the distinct transactions of a [Recorder].
const maxRecorded = 1 << 20

// PathQuestion is what a PathRecord Get asked for.
type PathQuestion struct {
	Mask sa.ComponentMask
	Path sa.PathRecord
}

// ACMQuestion is what an ACM multicast asked for.
type ACMQuestion struct {
	Node int // of the asker
	Type uint8
	Dest [acm.AddrSize]byte
}

// transaction names a request: who sent it, its class and the half of the TID
// that is the sender's.
type transaction struct {
	node  int
	port  uint8
	class uint8
	tid   uint32
}

// openRequest is a request that may still be answered.
type openRequest struct {
	until time.Time // zero: the sender gave no time-out
}

// Recorder watches the requests of all local ports from [Fabric.Record] on. All
// methods are safe for concurrent use.
type Recorder struct {
	stop func()

	mu       sync.Mutex
	sends    map[transaction][]time.Time
	paths    map[PathQuestion]int
	acms     map[ACMQuestion]int
	open     map[transaction]openRequest
	most     int
	overflow int
}

// Record starts a recorder. It costs a lock and a map entry per request; stop it
// before measuring anything.
func (f *Fabric) Record() *Recorder {
	r := &Recorder{
		sends: map[transaction][]time.Time{}, paths: map[PathQuestion]int{},
		acms: map[ACMQuestion]int{}, open: map[transaction]openRequest{},
	}
	r.stop = f.Trace(r.event)
	return r
}

// Stop ends the recording; what was recorded stays.
func (r *Recorder) Stop() { r.stop() }

func (r *Recorder) event(e Event) {
	t := transaction{e.Node, e.Port, e.MAD.Class(), e.MAD.TID().Low()}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.Kind == Sent && !e.MAD.IsResponse():
		r.sent(t, &e)
	case e.Kind == Delivered && e.MAD.IsResponse() && e.MAD.Class() != mad.ClassACM, e.Kind == TimedOut:
		delete(r.open, t)
	}
}

// sent records a request, or a further try of it. The caller holds r.mu.
func (r *Recorder) sent(t transaction, e *Event) {
	times, again := r.sends[t]
	if !again && len(r.sends) >= maxRecorded {
		r.overflow++
		return
	}
	r.sends[t] = append(times, e.Time)
	if e.MAD.Class() == mad.ClassACM {
		if !again {
			v := acm.View(&e.MAD)
			r.acms[ACMQuestion{e.Node, v.DestType(), *v.Dest()}]++
		}
		return
	}
	if !again && e.MAD.AttrID() == sa.AttrPathRecord && e.MAD.Method() == mad.MethodGet {
		r.paths[PathQuestion{sa.Mask(&e.MAD), *sa.Path(&e.MAD)}]++
	}
	o := openRequest{}
	if ms := e.Header.TimeoutMS(); ms != 0 {
		o.until = e.Time.Add(time.Duration(ms) * time.Millisecond * time.Duration(e.Header.Retries()+1))
	}
	r.open[t] = o
	if len(r.open) > r.most {
		// Before it counts as a new maximum, what the senders gave up must go.
		maps.DeleteFunc(r.open, func(_ transaction, o openRequest) bool {
			return !o.until.IsZero() && !e.Time.Before(o.until)
		})
		r.most = max(r.most, len(r.open))
	}
}

// Paths returns how often each path was asked for; a try with the TID of an
// earlier one does not count again.
func (r *Recorder) Paths() map[PathQuestion]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.paths)
}

// ACM returns how often each address was asked for by multicast, tries with the
// same TID counting once.
func (r *Recorder) ACM() map[ACMQuestion]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.acms)
}

// MaxOutstanding returns the most SA requests that waited for their answer at
// one time: sent, not answered and, where the sender gave a time-out, not older
// than that.
func (r *Recorder) MaxOutstanding() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// SendTimes returns when the tries of each transaction of a class were sent, in
// order of the first try.
func (r *Recorder) SendTimes(class uint8) [][]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all [][]time.Time
	for t, times := range r.sends {
		if t.class == class {
			all = append(all, slices.Clone(times))
		}
	}
	slices.SortFunc(all, func(a, b []time.Time) int { return a[0].Compare(b[0]) })
	return all
}

// Overflow returns how many requests were not recorded for want of room.
func (r *Recorder) Overflow() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.overflow
}
