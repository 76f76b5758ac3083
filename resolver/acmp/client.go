// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"fmt"
	"time"

	"acmd/mad"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
	"acmd/resolver/sa"
)

// EngineSA is a client of package resolver/sa in the form in which the engine
// wants one: results by value, errors as the engine's kinds.
type EngineSA struct{ Client *sa.Client }

var (
	_ resolver.SA       = EngineSA{}
	_ resolver.Informer = EngineSA{}
	_ resolver.Tabler   = EngineSA{}
)

// Path implements resolver.SA.
func (e EngineSA) Path(mask madsa.ComponentMask, rec *madsa.PathRecord, done func(resolver.SAResult)) {
	e.Client.Path(mask, rec, func(r *sa.Result) {
		out := resolver.SAResult{Err: engineError(r.Err), Tries: r.Tries}
		if r.Packet != nil {
			out.Valid, out.Path, out.Status = true, *r.Path(), r.Packet.Status()
			out.Err = nil
		}
		done(out)
	})
}

// Tables come in many packets that the transport puts together, and an SA has work
// with them: a second copy of the question is not sent before that is over.
const (
	tableGap   = 10 * time.Second
	tableTries = 2
)

// Table implements resolver.Tabler.
func (e EngineSA) Table(mask madsa.ComponentMask, rec *madsa.PathRecord, done func([]madsa.PathRecord, error)) {
	q := &sa.Query{Method: mad.MethodGetTable, Attr: madsa.AttrPathRecord, Mask: mask, Data: rec[:], Gap: tableGap, Tries: tableTries}
	e.Client.Do(q, func(r *sa.Result) {
		if r.Err != nil {
			done(nil, r.Err)
			return
		}
		if r.Partial {
			done(nil, resolver.ErrCut)
			return
		}
		n, err := madsa.CheckTable(r.Message, len(rec))
		if err != nil {
			done(nil, err)
			return
		}
		paths := make([]madsa.PathRecord, 0, n)
		for p := range madsa.Records(r.Message, len(rec)) {
			paths = append(paths, madsa.PathRecord(p))
		}
		done(paths, nil)
	})
}

// Update implements resolver.SA.
func (e EngineSA) Update(info transport.PortInfo) { e.Client.Update(info) }

// Inform implements resolver.Informer. A client that has ended tells nothing.
func (e EngineSA) Inform(notice func(*madsa.Notice), state func(subscribed bool, gap time.Duration)) {
	_ = e.Client.Subscribe(sa.Subscription{Traps: resolver.Traps, Notice: notice, State: state})
}

// Reregister implements resolver.Informer.
func (e EngineSA) Reregister() { e.Client.Reregister() }

// Close implements resolver.SA.
func (e EngineSA) Close() { e.Client.Close() }

func engineError(err error) error {
	var kind error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sa.ErrTimeout):
		kind = resolver.ErrTimeout
	case errors.Is(err, sa.ErrQueueFull):
		kind = resolver.ErrOverload
	default: // no SM, closed, device gone
		kind = resolver.ErrDown
	}
	return fmt.Errorf("%w: %w", kind, err)
}
