// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"acmd/cache"
	"acmd/mad"
)

// Bounds of what is kept and said about failed lookups. Clients and neighbours
// can make any number of them; the log must stay readable (field case 67).
const (
	failureRing    = 64              // kept for the operator
	failureKinds   = 256             // told apart by the log
	failureSilence = 1 * time.Minute // between two lines of one kind
)

// Failure is a lookup that ended without a path.
type Failure struct {
	Time     time.Time `json:"time"`
	Dst      string    `json:"dst"`
	Endpoint string    `json:"endpoint"`
	Step     string    `json:"step"`
	Status   Status    `json:"status"`
	Reason   string    `json:"reason"` // "address step: ..." or "route step: ..."
}

// failureKind is what the log tells apart: where and how, not for whom.
type failureKind struct {
	slot   uint16
	step   Step
	status Status
}

type failureCount struct {
	said  time.Time
	since int // not said since
}

// failureLog remembers the last failures and says each kind once a minute, with
// the number of those it did not say.
type failureLog struct {
	log *slog.Logger

	mu    sync.Mutex
	ring  [failureRing]Failure
	n     int // ever noted
	kinds map[failureKind]*failureCount
}

func (l *failureLog) init(log *slog.Logger) {
	l.log, l.kinds = log, map[failureKind]*failureCount{}
}

// note takes a failure. It is not on the path of hits.
func (l *failureLog) note(ep *Endpoint, dst string, r *Resolution) {
	f := Failure{Time: time.Now(), Dst: dst, Endpoint: ep.label(), Step: r.Step.String(), Status: r.Status}
	if r.Err != nil {
		f.Reason = r.Err.Error()
	}
	say, missed := l.count(failureKind{ep.Slot, r.Step, r.Status}, &f)
	if say {
		l.log.Warn("no path", "dst", f.Dst, "endpoint", f.Endpoint, "reason", f.Reason, "status", int(f.Status), "not_said", missed)
	}
}

func (l *failureLog) count(k failureKind, f *Failure) (say bool, missed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.n%failureRing] = *f
	l.n++
	c := l.kinds[k]
	if c == nil {
		c = &failureCount{}
		if len(l.kinds) >= failureKinds {
			c.since = l.forgetKinds(f.Time)
		}
		if len(l.kinds) >= failureKinds {
			return false, 0
		}
		l.kinds[k] = c
	} else if f.Time.Sub(c.said) < failureSilence {
		c.since++
		return false, 0
	}
	missed, c.since, c.said = c.since, 0, f.Time
	return true, missed
}

// forgetKinds makes room of kinds that would be said now, and returns how many
// failures of them were not said.
func (l *failureLog) forgetKinds(now time.Time) (unsaid int) {
	for k, c := range l.kinds {
		if now.Sub(c.said) >= failureSilence {
			unsaid += c.since
			delete(l.kinds, k)
		}
	}
	return unsaid
}

// Failures lists the last failed lookups, the newest first.
func (e *Engine) Failures() []Failure {
	l := &e.failures
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Failure, 0, min(l.n, failureRing))
	for i := l.n - 1; i >= 0 && len(list) < failureRing; i-- {
		list = append(list, l.ring[i%failureRing])
	}
	return list
}

// describe names what a query asked for.
func (q *Query) describe() string {
	if q.Kind == ByAddress {
		return q.Dst.String()
	}
	if g := q.Path.DGID(); !g.IsZero() {
		return "gid:" + g.String()
	}
	return "lid:" + q.Path.DLID().String()
}

// String is the address as text; a name's unprintable bytes are shown as dots.
func (a *Addr) String() string {
	switch a.Kind {
	case cache.KindName:
		return strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '.'
			}
			return r
		}, string(a.Bytes()))
	case cache.KindIPv4, cache.KindIPv6:
		return a.IP().String()
	case cache.KindGID:
		return mad.GID(a.Data[:16]).String()
	case cache.KindLID:
		return a.LID().String()
	}
	return "none"
}
