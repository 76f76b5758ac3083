// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// builtin is the provider "ibacmp": the configured address sources, then the SA.
// It needs nothing opened beyond the SA client that the engine brings.
type builtin struct{ e *Engine }

type builtinPort struct {
	e  *Engine
	sa SA
}

type builtinEndpoint struct {
	e     *Engine
	sa    SA
	row   *bpf.Endpoint
	table atomic.Pointer[pathTable] // nil: there is none
}

type builtinAddress struct{}

func (b *builtin) Name() string                                         { return DefaultProviderName }
func (b *builtin) OpenDevice(*transport.Device) (ProviderDevice, error) { return b, nil }
func (b *builtin) Close()                                               {}
func (b *builtin) OpenPort(p *OpenPort) (ProviderPort, error)           { return &builtinPort{b.e, p.SA}, nil }

func (p *builtinPort) Close()                          {}
func (p *builtinPort) HandleEvent(transport.EventType) {}
func (p *builtinPort) OpenEndpoint(ep *Endpoint) (ProviderEndpoint, error) {
	return &builtinEndpoint{e: p.e, sa: p.sa, row: p.e.counters.endpoint(ep)}, nil
}

func (x *builtinEndpoint) Close()                 {}
func (x *builtinEndpoint) Perf() (Counters, bool) { return Counters{}, false }
func (x *builtinEndpoint) AddAddress(*LocalAddr) (ProviderAddress, error) {
	return builtinAddress{}, nil
}
func (builtinAddress) Remove() {}

// Query implements [ProviderEndpoint].
func (x *builtinEndpoint) Query(mask sa.ComponentMask, path *sa.PathRecord, done func(SAResult)) {
	x.sa.Path(mask, path, done)
}

// Resolve implements [ProviderEndpoint].
func (x *builtinEndpoint) Resolve(ask *Ask, done func(*Resolution)) {
	switch ask.Dst.Kind {
	case 0: // a path
		x.route(ask, ask.Mask, &ask.Path, done)
	case cache.KindGID:
		x.routeTo(ask, &Location{GID: [16]byte(ask.Dst.Data[:16])}, done)
	case cache.KindLID:
		x.routeTo(ask, &Location{LID: ask.Dst.LID()}, done)
	default:
		x.address(ask, done)
	}
}

// addressStep is one run through the address sources.
type addressStep struct {
	x     *builtinEndpoint
	ask   *Ask
	done  func(*Resolution)
	key   cache.Key
	since cache.Epoch
	began int64
	next  int
	errs  []error
	found Location
	first sourceAsk
}

// sourceAsk is one question to one source.
type sourceAsk struct {
	s        *addressStep
	src      AddressSource
	answered atomic.Bool
	guard    atomic.Pointer[time.Timer]
}

// address finds where the destination is: a remembered answer of another node,
// else the sources in order.
func (x *builtinEndpoint) address(ask *Ask, done func(*Resolution)) {
	ask.step.set(StepAddress)
	s := &addressStep{x: x, ask: ask, done: done, key: cache.MakeKey(ask.slot, ask.Dst.Kind, ask.Dst.Bytes()),
		since: x.e.addrs.Epoch(), began: x.e.Now()}
	var rec sa.PathRecord
	if m, ok := x.e.addrs.Get(&s.key, x.e.Now(), (*[64]byte)(&rec)); ok {
		x.row.Add(0, CounterAddrCache, 1)
		s.known(Location{GID: rec.DGID(), LID: rec.DLID(), Source: SourceACM, Expiry: remaining(m.Deadline, x.e.Now())})
		return
	}
	s.step()
}

func remaining(deadline, now int64) time.Duration {
	if deadline == math.MaxInt64 {
		return 0
	}
	return time.Duration(max(deadline-now, 1))
}

// step asks the next source. The deadline is the engine's too: once Locate has
// returned, a source that forgets its callback is not waited for.
func (s *addressStep) step() {
	e := s.x.e
	if s.next >= len(e.cfg.Sources) {
		s.fail()
		return
	}
	src := e.cfg.Sources[s.next]
	s.next++
	if src.Name() == SourceACM {
		s.x.row.Add(0, CounterAddrQuery, 1)
	}
	a := &s.first
	if s.next > 1 {
		a = new(sourceAsk)
	}
	a.s, a.src = s, src
	src.Locate(s.ask.Endpoint, &s.ask.Src, &s.ask.Dst, time.Now().Add(e.cfg.AddressDeadline), a.done)
	if a.answered.Load() {
		return // as files do
	}
	guard := time.AfterFunc(e.cfg.AddressDeadline+time.Second, a.late)
	if a.guard.Store(guard); a.answered.Load() {
		guard.Stop()
	}
}

// done takes the answer of the source, from any goroutine.
func (a *sourceAsk) done(l Location, err error) {
	if !a.answered.CompareAndSwap(false, true) {
		return
	}
	if guard := a.guard.Load(); guard != nil {
		guard.Stop()
	}
	a.s.answered(a.src, l, err)
}

func (a *sourceAsk) late() {
	if a.answered.CompareAndSwap(false, true) {
		a.s.answered(a.src, Location{}, fmt.Errorf("%s: %w by the deadline", a.src.Name(), ErrTimeout))
	}
}

// answered takes the outcome of one source.
func (s *addressStep) answered(src AddressSource, l Location, err error) {
	if err == nil && l.Route == nil && l.GID.IsZero() && l.LID == 0 {
		err = fmt.Errorf("%s: answer without an address: %w", src.Name(), ErrUnknown)
	}
	if err != nil {
		s.errs = append(s.errs, err)
		s.step()
		return
	}
	s.x.e.timeStep(bpf.LatAddress, s.began)
	if src.Name() == SourceACM {
		s.keep(&l)
	} else if l.Route == nil {
		s.x.row.Add(0, CounterAddrCache, 1)
	}
	s.known(l)
}

// keep remembers what another node told for the address lifetime, so that paths
// are refreshed without asking all nodes again.
func (s *addressStep) keep(l *Location) {
	e := s.x.e
	life := e.cfg.AddrTimeout
	if l.Expiry > 0 {
		life = min(life, l.Expiry)
	}
	if e.cfg.AddrTimeout == 0 {
		return
	}
	var rec sa.PathRecord
	rec.SetDGID(l.GID)
	rec.SetDLID(l.LID)
	m := cache.Meta{Deadline: addSaturated(e.Now(), int64(life)), Refresh: math.MaxInt64, Scope: s.ask.port.scopeOf(s.ask.SGID)}
	e.addrs.Put(&s.key, (*[64]byte)(&rec), m, s.since)
}

// fail ends the step when no source had an answer. A name that nobody knows is
// "timed out", whether a question could be put to the other nodes or not: to the
// client it is the same, the reason is in the log. A group that is not joined is
// "no data", as it is with ibacm.
func (s *addressStep) fail() {
	s.x.e.timeStep(bpf.LatAddress, s.began)
	st := StatusTimedOut
	for _, err := range s.errs {
		switch {
		case errors.Is(err, ErrOverload):
			st = StatusNoMemory
		case errors.Is(err, ErrDown) && st == StatusTimedOut:
			st = StatusNoData
		}
	}
	err := errors.Join(s.errs...)
	if len(s.errs) == 0 {
		err = errNoSources
	}
	s.done(&Resolution{Status: st, Step: StepAddress, Err: stepError(StepAddress, err)})
}

var errNoSources = errors.New("no source is configured")

// known goes on with an address: with the route that came with it, or to the
// route step. A client is answered only once the route is there (field case 25).
func (s *addressStep) known(l Location) {
	if l.Route != nil {
		s.done(&Resolution{Path: *l.Route, Origin: l.Origin, Lifetime: l.Expiry})
		return
	}
	s.found = l
	s.x.routeTo(s.ask, &s.found, s.routed)
}

// routed takes the outcome of the route step.
func (s *addressStep) routed(r *Resolution) {
	if r.Status == StatusNoData {
		s.x.e.addrs.Delete(&s.key) // it may have moved: ask again next time
	}
	if s.found.Expiry > 0 {
		r.Lifetime = s.found.Expiry
	}
	s.done(r)
}

// stepError says which step failed.
func stepError(s Step, err error) error { return &failure{s, err} }

type failure struct {
	step Step
	err  error
}

func (f *failure) Error() string { return f.step.String() + ": " + oneLine(f.err) }
func (f *failure) Unwrap() error { return f.err }

// oneLine writes joined errors on one line.
func oneLine(err error) string {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err.Error()
	}
	text := ""
	for i, e := range joined.Unwrap() {
		if i > 0 {
			text += "; "
		}
		text += oneLine(e)
	}
	return text
}
