// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"sync"
	"sync/atomic"
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad"
	"acmd/resolver"
)

// fakeResolver answers by the destination: the last byte of an IPv4 address, or
// the DLID, says what happens. Everything it answers names the destination in
// its DLID, so that a reply can be matched with its question.
//
//	IPv4 10.0.x.y, LID below 1000: at once (hit)
//	IPv4 10.1.x.y: waits until release (miss)
//	IPv4 10.2.x.y: answered by Resolve itself (NODELAY style)
//	IPv4 10.3.x.y: answered from another goroutine at once
//	IPv4 10.4.x.y: StatusNoData at once; 10.5: StatusTimedOut from a goroutine
//	source 203.0.113.x: StatusSrcAddr
type fakeResolver struct {
	eps    []*resolver.Endpoint
	totals resolver.Counters
	perEP  resolver.Counters
	counts *bpf.Maps // part of the totals if there are any

	lookups, resolves atomic.Int64

	mu   sync.Mutex
	held []heldQuery
	last resolver.Query
}

type heldQuery struct {
	q   resolver.Query
	tag uint64
	w   resolver.Waiter
}

func newFake() *fakeResolver { return &fakeResolver{} }

func (f *fakeResolver) Now() int64 { return time.Now().UnixNano() }

// answerTo makes the answer that belongs to q.
func answerTo(q *resolver.Query, a *resolver.Answer) {
	*a = resolver.Answer{}
	p := examplePath()
	switch q.Kind {
	case resolver.ByAddress:
		p.SetDLID(mad.LID(q.Dst.Data[2])<<8 | mad.LID(q.Dst.Data[3]))
		if q.Src.IsZero() {
			a.Src = resolver.Addr{Kind: q.Dst.Kind, Len: q.Dst.Len}
			a.Src.Data[0], a.Src.Data[3] = 10, 1
		}
	case resolver.ByPath:
		p = q.Path
		p.SetSLID(4)
	case resolver.AskSA:
		p = q.Path
		p.SetSLID(0x77)
		a.Asked = true
	}
	a.Path = p
}

func (f *fakeResolver) group(q *resolver.Query) byte {
	if q.Kind == resolver.ByAddress && q.Dst.Kind == cache.KindIPv4 && q.Dst.Data[0] == 10 {
		return q.Dst.Data[1]
	}
	return 0
}

func (f *fakeResolver) Lookup(q *resolver.Query, now int64, a *resolver.Answer) bool {
	f.lookups.Add(1)
	if q.Src.Kind == cache.KindIPv4 && q.Src.Data[0] == 203 {
		*a = resolver.Answer{Status: resolver.StatusSrcAddr, Core: true}
		return true
	}
	if q.Kind == resolver.AskSA {
		return false
	}
	switch f.group(q) {
	case 0:
		answerTo(q, a)
		return true
	case 4:
		*a = resolver.Answer{Status: resolver.StatusNoData}
		return true
	}
	return false
}

func (f *fakeResolver) Resolve(q *resolver.Query, tag uint64, w resolver.Waiter) {
	f.resolves.Add(1)
	f.mu.Lock()
	f.last = *q
	f.mu.Unlock()
	var a resolver.Answer
	switch g := f.group(q); {
	case q.Kind == resolver.AskSA, g == 3, g == 5:
		c := *q
		go func() {
			var a resolver.Answer
			answerTo(&c, &a)
			if g == 5 {
				a = resolver.Answer{Status: resolver.StatusTimedOut}
			}
			w.Answered(tag, &a)
		}()
	case g == 2 || q.NoDelay:
		answerTo(q, &a)
		if q.NoDelay {
			a = resolver.Answer{Status: resolver.StatusNoData}
		}
		w.Answered(tag, &a)
	default:
		f.mu.Lock()
		f.held = append(f.held, heldQuery{*q, tag, w})
		f.mu.Unlock()
	}
}

// waiting is the number of held queries.
func (f *fakeResolver) waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held)
}

// release answers held query i, in order of arrival, and forgets it.
func (f *fakeResolver) release(i int) {
	f.mu.Lock()
	h := f.held[i]
	f.held = append(f.held[:i:i], f.held[i+1:]...)
	f.mu.Unlock()
	var a resolver.Answer
	answerTo(&h.q, &a)
	h.w.Answered(h.tag, &a)
}

// releaseAll answers everything that is held, the latest first.
func (f *fakeResolver) releaseAll() int {
	f.mu.Lock()
	held := f.held
	f.held = nil
	f.mu.Unlock()
	for i := len(held) - 1; i >= 0; i-- {
		var a resolver.Answer
		answerTo(&held[i].q, &a)
		held[i].w.Answered(held[i].tag, &a)
	}
	return len(held)
}

func (f *fakeResolver) Endpoints() []*resolver.Endpoint                          { return f.eps }
func (f *fakeResolver) EndpointCounters(ep *resolver.Endpoint) resolver.Counters { return f.perEP }

func (f *fakeResolver) Totals() resolver.Counters {
	c := f.totals
	if f.counts != nil {
		own := f.counts.Totals()
		c.Add(&own)
	}
	return c
}

func (f *fakeResolver) BySource(src *resolver.Addr) *resolver.Endpoint {
	for _, ep := range f.eps {
		for i := range ep.Addrs {
			if ep.Addrs[i].Addr == *src {
				return ep
			}
		}
	}
	return nil
}

func localIP(a, b, c, d byte) resolver.LocalAddr {
	return resolver.LocalAddr{Addr: ip4(a, b, c, d), Text: "10.0.0.1"}
}
