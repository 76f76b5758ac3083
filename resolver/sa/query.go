// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"time"

	"acmd/mad"
	madsa "acmd/mad/sa"
)

// Query is one SA request. [Client.Do] copies it.
type Query struct {
	Method uint8 // mad.MethodGet, MethodSet, MethodGetTable, MethodDelete
	Attr   uint16
	Mod    uint32 // attribute modifier
	Mask   madsa.ComponentMask
	Data   []byte // attribute in wire form, at most 200 bytes
	// Gap is the shortest time between tries, for answers that take long to
	// transfer such as big tables. 0: MinGap; a longer one also raises the
	// longest gap.
	Gap time.Duration
	// Tries is the number of copies sent when nothing comes back. 0: as in Config.
	Tries int
	// RetryNoRecords is what the field of Config is for Path. 0: the answer is
	// final.
	RetryNoRecords int
}

// Result is the outcome of a flight. It and what it points to belong to the
// client and are valid during the callback.
type Result struct {
	// Err is nil on success. With Packet set it is a *StatusError.
	Err error
	// Packet is the answer in place, also that of a refusal; nil when none came.
	// Bytes past the attribute may be stale.
	Packet *mad.Packet
	// Message is the answer, 56 bytes of SA header and then data, cut to what was
	// really sent (see mad/sa.Message): what mad/sa.Records takes.
	Message []byte
	// Long is Message when the transport put it together from several packets,
	// nil for a single one.
	Long []byte
	// Partial: the answer is only the first packet of several, as the transport
	// does not put them together.
	Partial bool
	// Tries is the number of copies that were sent.
	Tries int
	// RTT is the time from the last copy to the answer, 0 without an answer.
	RTT time.Duration
}

// Path returns the answer's first 64 bytes of data as a PathRecord, in place;
// nil without an answer.
func (r *Result) Path() *madsa.PathRecord {
	if r.Packet == nil {
		return nil
	}
	return madsa.Path(r.Packet)
}

// state of a flight.
type state uint8

const (
	stateQueued  state = iota // in the submit list or the queue
	stateWire                 // a try is out
	stateDelayed              // answered "later"; its timer sends the next try
	stateRetry                // in the retry list, the next try is due
)

// flight is one question under way. The owner goroutine has it from submission
// to the end.
type flight struct {
	next  *flight // in the list that it is in
	done  func(*Result)
	timer Timer
	err   error // why the last try failed, when there is more to say than silence

	tid    uint32
	state  state
	method uint8
	seated bool // counts in the window
	held   bool // the kernel still has the last try under this TID
	moved  bool // the timer is not a time-out: the SM has moved
	early  bool // a try was sent early for that reason
	attr   uint16
	size   uint16 // of data
	lid    mad.LID
	mod    uint32
	mask   madsa.ComponentMask

	base    int64 // first gap, ns
	cap     int64 // longest gap, ns
	jitter  int64 // 0..256: this flight's gaps are longer by jitter/1024
	gap     int64 // of the last try
	queued  int64 // when it entered the queue
	sent    int64 // when the last try was sent
	end     int64 // answered tries are not repeated beyond
	tries   int   // copies sent
	silent  int   // tries without an answer
	busy    int   // BUSY answers
	norecs  int   // "no records" answers
	norecsN int   // how many of them may be asked again
	retries int   // silent tries beyond the first

	data [madsa.DataSize]byte
}

// interval returns the n-th gap (from 0) of the flight, jitter included.
func (f *flight) interval(n int) int64 {
	g := f.base
	for ; n > 0 && g < f.cap; n-- {
		g *= 2
	}
	g = min(g, f.cap)
	return g + g*f.jitter/1024
}

// overdue is when the try on the wire is given up. With the kernel's timer
// running that is only in case it never fires.
func (f *flight) overdue() int64 {
	if f.held {
		return f.sent + f.gap + int64(timerMargin) + f.gap/4
	}
	return f.sent + f.gap
}

// life is the time from the first try to the end of the last gap when nothing
// is answered.
func (f *flight) life() int64 {
	var sum int64
	for n := 0; n <= f.retries; n++ {
		sum += f.interval(n)
	}
	return sum
}

// list is a FIFO of flights.
type list struct {
	head, tail *flight
	n          int
}

func (l *list) push(f *flight) {
	f.next = nil
	if l.tail == nil {
		l.head = f
	} else {
		l.tail.next = f
	}
	l.tail = f
	l.n++
}

func (l *list) pushFront(f *flight) {
	f.next = l.head
	l.head = f
	if l.tail == nil {
		l.tail = f
	}
	l.n++
}

func (l *list) pop() *flight {
	f := l.head
	if f == nil {
		return nil
	}
	l.head, f.next = f.next, nil
	if l.head == nil {
		l.tail = nil
	}
	l.n--
	return f
}

// remove takes f out from wherever it is.
func (l *list) remove(f *flight) {
	var prev *flight
	for g := l.head; g != nil; prev, g = g, g.next {
		if g != f {
			continue
		}
		if prev == nil {
			l.head = f.next
		} else {
			prev.next = f.next
		}
		if l.tail == f {
			l.tail = prev
		}
		f.next = nil
		l.n--
		return
	}
}
