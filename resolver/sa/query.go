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
	// Long is the whole MAD, 56 bytes of header and then data, of an answer of
	// several packets; nil for a single one.
	Long []byte
	// Tries is the number of copies that were sent.
	Tries int
	// RTT is the time from the last copy to the answer, 0 without an answer.
	RTT time.Duration

	length int // bytes of the MAD in Packet
}

// Path returns the answer's first 64 bytes of data as a PathRecord, in place;
// nil without an answer.
func (r *Result) Path() *madsa.PathRecord {
	if r.Packet == nil {
		return nil
	}
	return madsa.Path(r.Packet)
}

// Data returns the attributes of the answer, all those of a table, in place.
// Trailing bytes that no record fills may follow.
func (r *Result) Data() []byte {
	switch {
	case len(r.Long) > madsa.DataOffset:
		return r.Long[madsa.DataOffset:]
	case r.Packet == nil:
		return nil
	}
	return r.Packet[madsa.DataOffset:max(r.length, madsa.DataOffset)]
}

// state of a flight.
type state uint8

const (
	stateQueued  state = iota // in the submit list, the queue or the retry list
	stateWire                 // a try is out
	stateDelayed              // answered "later"; its timer sends the next try
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

// life is the time from the first try to the end of the last gap when nothing
// is answered.
func (f *flight) life(retries int) int64 {
	var sum int64
	for n := 0; n <= retries; n++ {
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
