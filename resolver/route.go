// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"math"
	"sync"

	"acmd/bpf"
	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
)

// routeKey is what a route flight is for: all spellings of a destination end in
// the same question to the SA.
type routeKey struct {
	endpoint   uint16
	sgid, dgid mad.GID
}

// routeFlight is one path query under way for all who need that route.
type routeFlight struct {
	x     *builtinEndpoint
	key   routeKey
	since cache.Epoch
	asked int64
	first routeWait // nearly always the only one
	more  []routeWait
	over  bool
}

// routeWait is a lookup that waits for a route.
type routeWait struct {
	ask  *Ask
	key  cache.Key // of the route, by GID
	done func(*Resolution)
}

// routeTable has the route flights. There is at most one per flight of the
// flight table, which bounds it.
type routeTable struct {
	mu sync.Mutex
	m  map[routeKey]*routeFlight
}

func (t *routeTable) init() { t.m = map[routeKey]*routeFlight{} }

// routeTo asks for the route to an address that the address step found.
func (x *builtinEndpoint) routeTo(ask *Ask, l *Location, done func(*Resolution)) {
	path := ask.Path
	path.SetDGID(l.GID)
	if l.GID.IsZero() {
		path.SetDLID(l.LID)
	}
	x.route(ask, maskOf(&path), &path, done)
}

// route is the route step. A path to a GID that constrains nothing else is asked
// for once, whoever needs it, and is kept under the GID as well, so that the next
// spelling of the destination finds it.
func (x *builtinEndpoint) route(ask *Ask, mask sa.ComponentMask, path *sa.PathRecord, done func(*Resolution)) {
	ask.step.set(StepRoute)
	e := x.e
	if r := x.ownRoute(ask, path); r != nil {
		done(r)
		return
	}
	if !plainGID(ask, path) {
		if r := x.fetched(ask, path); r != nil {
			done(r)
			return
		}
		asked := e.Now()
		x.askRoute(ask, mask, path, func(r SAResult) {
			e.timeStep(bpf.LatRoute, asked)
			done(routeResult(&r, asked, ask.since))
		})
		return
	}
	w := routeWait{ask: ask, key: cache.MakeKey(ask.slot, cache.KindGID, path[8:24]), done: done}
	r := x.knownRoute(ask, &w.key)
	if r == nil {
		r = x.fetched(ask, path)
	}
	if r != nil {
		done(r)
		return
	}
	key := routeKey{ask.Endpoint.Slot, ask.SGID, path.DGID()}
	t := &e.routes
	t.mu.Lock()
	// A question from before an invalidation cannot answer one from after it. Who began
	// before it asks from the port as it was, however late.
	if f := t.m[key]; f != nil && f.since == ask.since {
		f.more = append(f.more, w)
		t.mu.Unlock()
		e.stats.routeShared.Add(1)
		return
	}
	f := &routeFlight{x: x, key: key, since: ask.since, asked: e.Now(), first: w}
	t.m[key] = f
	t.mu.Unlock()
	x.askRoute(ask, mask, path, f.answered)
}

// answered takes the SA's answer for all who wait for it. A second one is ignored.
func (f *routeFlight) answered(r SAResult) {
	e, t := f.x.e, &f.x.e.routes
	t.mu.Lock()
	if f.over {
		t.mu.Unlock()
		return
	}
	f.over = true
	if t.m[f.key] == f {
		delete(t.m, f.key)
	}
	t.mu.Unlock()
	e.timeStep(bpf.LatRoute, f.asked)
	f.finish(&f.first, &r)
	for i := range f.more { // nobody joins any more
		f.finish(&f.more[i], &r)
	}
}

// finish keeps the route for other spellings of the destination, and goes on with
// one lookup.
func (f *routeFlight) finish(w *routeWait, r *SAResult) {
	e, ask := f.x.e, w.ask
	res := routeResult(r, f.asked, f.since)
	if res.Status == StatusSuccess && ask.Dst.Kind != 0 && ask.Dst.Kind != cache.KindGID {
		m := cache.Meta{Scope: ask.port.scopeOf(ask.SGID), Origin: uint8(OriginSA)}
		m.Deadline, m.Refresh = e.lifetimes(f.asked, res)
		if m.Deadline > f.asked {
			e.cache.Put(&w.key, (*[64]byte)(&res.Path), m, f.since)
		}
	}
	if res.Status == StatusNoData {
		e.doubt(&w.key, f.since)
	}
	w.done(res)
}

// plainMask is what every query has.
const plainMask = sa.PathSGID | sa.PathSLID | sa.PathPKey | sa.PathReversible | sa.PathNumPath

// ownRoute finds a preloaded route from GID 0 of the port.
func (x *builtinEndpoint) ownRoute(ask *Ask, path *sa.PathRecord) *Resolution {
	if x.e.cfg.Routes == nil || ask.SGID != ask.Endpoint.GID || path.SLID() != ask.port.info.LID {
		return nil
	}
	var dst Addr
	switch maskOf(path) &^ plainMask {
	case sa.PathDGID:
		dst = GIDAddr(path.DGID())
	case sa.PathDLID:
		dst = LIDAddr(path.DLID())
	default:
		return nil
	}
	rec, ok := x.e.cfg.Routes.Route(ask.Endpoint, dst)
	if !ok {
		return nil
	}
	return &Resolution{Path: rec, Origin: OriginPreload}
}

// plainGID tells a query for the path to a GID that has only what is always
// filled in, from the source GID that the key's slot stands for.
func plainGID(ask *Ask, path *sa.PathRecord) bool {
	if maskOf(path)&^plainMask != sa.PathDGID || path.SLID() != ask.port.info.LID {
		return false
	}
	return ask.slot != ask.Endpoint.Slot || ask.SGID == ask.port.sourceGID(path.DGID())
}

// knownRoute finds the route that another spelling of the destination led to, if
// it is fresh and not from before the destination was flushed. For a refresh it must
// be from the last half of the refresh age.
func (x *builtinEndpoint) knownRoute(ask *Ask, key *cache.Key) *Resolution {
	e := x.e
	if ask.Dst.Kind == 0 || ask.Dst.Kind == cache.KindGID || e.cfg.AddrTimeout == 0 {
		return nil // the flight has looked there
	}
	var rec [64]byte
	now := e.Now()
	own := cache.MakeKey(ask.slot, ask.Dst.Kind, ask.Dst.Bytes())
	m, since, ok := e.cache.GetSince(key, &own, now, &rec)
	if !ok || m.Status != 0 || now >= m.Refresh || m.Refresh <= ask.port.state.staleUntil.Load() {
		return nil
	}
	if m.Refresh == math.MaxInt64 { // no age to tell
		if ask.Refresh {
			return nil
		}
		return &Resolution{Path: rec, Origin: Origin(m.Origin), asked: now, since: since}
	}
	asked := m.Refresh - e.refreshAge
	if ask.Refresh && now-asked > e.refreshAge/2 {
		return nil
	}
	return &Resolution{Path: rec, Origin: Origin(m.Origin), asked: asked, since: since}
}

// askRoute sends one path query.
func (x *builtinEndpoint) askRoute(ask *Ask, mask sa.ComponentMask, path *sa.PathRecord, done func(SAResult)) {
	x.e.stats.routeAsks.Add(1)
	x.row.Add(uintptr(ask.slot), CounterRouteQuery, 1)
	if _, plain := tableKey(ask, path); plain && x.e.cfg.Prefetch {
		to, tell := *path, done
		done = func(r SAResult) {
			if st, _ := saFailure(&r); st == StatusNoData {
				if t := x.table.Load(); t != nil {
					t.drop(&to)
				}
			}
			tell(r)
		}
	}
	x.sa.Path(mask, path, done)
}

// routeResult turns the outcome of a path query into a resolution.
func routeResult(r *SAResult, asked int64, since cache.Epoch) *Resolution {
	st, err := saFailure(r)
	if st != StatusSuccess {
		return &Resolution{Status: st, Step: StepRoute, Err: stepError(StepRoute, err), asked: asked, since: since}
	}
	return &Resolution{Path: r.Path, Origin: OriginSA, asked: asked, since: since}
}
