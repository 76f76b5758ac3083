// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"time"

	"acmd/mad"
	"acmd/mad/sa"
)

// Informer is an SA that can also pass on what the SM tells by itself. The engine
// uses it where it is there; paths are otherwise bounded by their lifetime alone.
type Informer interface {
	// Inform starts a subscription to Traps that lasts as long as the SA. Both
	// functions may be called from any goroutine and do not block. The notice is
	// valid during the call. state tells when the subscription begins to hold, with
	// the time for which notices may have been missed before, and when it ends.
	Inform(notice func(*sa.Notice), state func(subscribed bool, gap time.Duration))
	// Reregister tells that the SM may have forgotten the subscription.
	Reregister()
}

// Traps are the notices that concern paths: ports and groups that came and went,
// and changes of a port itself.
var Traps = []uint16{sa.TrapGIDInService, sa.TrapGIDOutOfService, sa.TrapGroupCreated, sa.TrapGroupDeleted, sa.TrapLocalChanges}

// shortGap is how long notices may be missed without every path being looked at
// again. The SM itself asks for that after its own restart and after a link came up
// (client reregistration); beside that a short gap hides little, and an SM that
// serves thousands of nodes is not to be asked for all of it each time.
const shortGap = 5 * time.Second

// inform subscribes the SA client of a port, if it can.
func (e *Engine) inform(p *portState) {
	s, ok := p.sa.(Informer)
	if !ok {
		return
	}
	s.Inform(
		func(n *sa.Notice) { e.notice(p.id, n) },
		func(subscribed bool, gap time.Duration) {
			if subscribed && gap >= shortGap {
				e.log.Info("notices may have been missed, looking at paths again", "device", p.id.dev, "port", p.id.num, "for", gap)
				e.doubtPort(p)
			}
		})
}

// reregister tells an SA client that the SM may have forgotten its subscription.
func reregister(s SA) {
	if i, ok := s.(Informer); ok {
		i.Reregister()
	}
}

// notice acts on what the SM tells. A path that died is served by nobody when it
// returns, see [Mirror], and the SM is answered after that; the goroutine of the SA
// client waits for nothing. Where a name leads to stays known: that is not the SM's to tell, and
// it lets the next question end in one round trip.
func (e *Engine) notice(from portID, n *sa.Notice) {
	e.stats.notices.Add(1)
	dropped := 0
	switch gid := n.GID(); n.Trap() {
	case sa.TrapGIDOutOfService, sa.TrapGroupCreated, sa.TrapGroupDeleted:
		dropped = e.dropPaths(gid)
	case sa.TrapGIDInService:
		// The notice of its going may have been lost, or never sent if the port was
		// back before the SM looked (field case 8).
		dropped = e.dropPaths(gid)
		e.forgetFailures()
	case sa.TrapLocalChanges:
		if n.OtherChanges() && n.Changes()&(sa.ChangeLinkWidth|sa.ChangeLinkSpeed) != 0 {
			dropped = e.cache.DropLID(n.LID())
		}
	}
	e.stats.noticeDrops.Add(uint64(dropped))
	if e.cfg.OnNotice != nil {
		e.cfg.OnNotice(from.dev, from.num, n)
	}
}

// dropPaths drops every path to a GID, and to the same port under the default
// prefix: the SM names ports with the subnet's own prefix, which clients need not
// use.
func (e *Engine) dropPaths(gid mad.GID) int {
	n := e.cache.DropGID(gid)
	if gid.IsMulticast() || gid.Prefix() == mad.DefaultPrefix {
		return n
	}
	return n + e.cache.DropGID(mad.MakeGID(mad.DefaultPrefix, gid.GUID()))
}

// forgetFailures gives everything that failed another try.
func (e *Engine) forgetFailures() {
	e.failedUntil.Store(addSaturated(e.Now(), int64(max(e.cfg.NegativeTimeout, 0))))
}

// isForgotten tells of a failure that is remembered until a deadline whether it is
// from before forgetFailures: all failures are remembered equally long.
func (e *Engine) isForgotten(deadline int64) bool { return deadline <= e.failedUntil.Load() }

// doubtPort makes every path of a port due for refresh and forgets its failures.
// With refreshing off nothing would look at them again, so they go. Any goroutine.
func (e *Engine) doubtPort(p *portState) {
	if e.refreshAge != int64(Forever) {
		e.markStale(p)
		return
	}
	for _, s := range e.topo.Load().scopes[p.id] {
		e.dropScope(s)
	}
}
