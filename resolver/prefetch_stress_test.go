// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// stressPeers have 8 versions among them: of peer n, that of n%8.
const stressPeers = 400

// versionedTable answers for tables as old as their question as well.
type versionedTable struct {
	SA
	v *versioned
}

func (p versionedTable) Table(_ sa.ComponentMask, rec *sa.PathRecord, done func([]sa.PathRecord, error)) {
	var paths []sa.PathRecord
	for n := range uint64(stressPeers) {
		r := *rec
		r.SetDGID(gidOf(16 + n))
		paths = append(paths, p.v.answer(&r).Path)
	}
	time.AfterFunc(time.Duration(rand.IntN(3000))*time.Millisecond, func() { done(paths, nil) })
}

// Whatever voids paths, and however it meets with tables that come, routes that are looked
// for in them and endpoints that are closed and opened: no query that starts after it is
// answered with a path from before it, be it out of a table or out of what the cache
// has from one.
func TestPrefetchStress(t *testing.T) {
	var v versioned
	var floors [8]atomic.Uint32
	var lidFloor atomic.Uint32
	names := [stressPeers]Addr{}
	bubble(t, func(l *lab, c *Config) {
		c.Prefetch, c.Loopback = true, false
		c.AddrTimeout, c.Refresh = 10*time.Minute, time.Minute
		c.OpenSA = func(dev string, info transport.PortInfo) (SA, error) {
			s, err := l.sa.openPort(dev, info)
			return versionedTable{s, &v}, err
		}
		l.sa.respond = func(_ sa.ComponentMask, rec *sa.PathRecord) (SAResult, time.Duration) {
			r := *rec
			if r.DGID().IsZero() {
				r.SetDGID(gidOf(uint64(r.DLID() - 100)))
			}
			return v.answer(&r), time.Duration(rand.IntN(50)) * time.Millisecond
		}
		for n := range names {
			names[n] = NameAddr(fmt.Sprintf("peer%d", n))
			l.acm.gids[names[n]] = gidOf(16 + uint64(n))
		}
	}, func(t *testing.T, l *lab) {
		var stop atomic.Bool
		var answered atomic.Int64
		var askers sync.WaitGroup
		for range 6 {
			askers.Go(func() {
				for !stop.Load() {
					n := rand.IntN(stressPeers)
					q := []Query{byGID(gidOf(16 + uint64(n))), byLID(mad.LID(116 + n)), {Kind: ByAddress, Src: NameAddr("node1"), Dst: names[n]}}[rand.IntN(3)]
					floor, lid := floors[n%8].Load(), lidFloor.Load()
					if a, _ := l.ask(q); a.Status == StatusSuccess {
						answered.Add(1)
						if a.Path.FlowLabel() < floor || uint32(a.Path.SLID()) < lid {
							t.Errorf("%s: version %d from LID %v after %d from %d was acknowledged", q.describe(), a.Path.FlowLabel(), a.Path.SLID(), floor, lid)
							return
						}
					}
					time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
				}
			})
		}
		lid := mad.LID(5)
		setPort := func(state mad.State, sm mad.LID) {
			p := port(1, lid)
			p.GIDs, p.State, p.SMLID = []mad.GID{gidOf(5)}, state, sm
			l.fab.set(device("mlx5_0", p))
			l.e.SetAddresses(l.e.cfg.Addresses) // acknowledges the look
		}
		for range 300 {
			n := rand.IntN(8)
			// peers changes the paths to those of a version, of which f voids each.
			peers := func(n int, f func(gid mad.GID, lid mad.LID)) {
				now := v.of(gidOf(16 + uint64(n))).Add(1)
				for d := n; d < stressPeers; d += 8 {
					f(gidOf(16+uint64(d)), mad.LID(116+d))
				}
				floors[n].Store(now)
			}
			everything := func(f func()) {
				now := [8]uint32{}
				for d := range now {
					now[d] = v.of(gidOf(16 + uint64(d))).Add(1)
				}
				f()
				for d := range now {
					floors[d].Store(now[d])
				}
			}
			switch rand.IntN(12) {
			case 0:
				peers(n, func(gid mad.GID, _ mad.LID) { l.e.FlushGID(gid) })
			case 1:
				peers(n, func(_ mad.GID, lid mad.LID) { l.e.FlushLID(lid) })
			case 2:
				peers(n, func(gid mad.GID, _ mad.LID) { l.e.FlushDest(GIDAddr(gid)) })
			case 3, 4, 5:
				trap := []uint16{sa.TrapGIDInService, sa.TrapGIDOutOfService, sa.TrapGroupCreated}[rand.IntN(3)]
				peers(n, func(gid mad.GID, _ mad.LID) { l.e.notice(portID{"mlx5_0", 1}, serviceNotice(trap, gid)) })
			case 6:
				everything(func() { l.e.FlushAll() })
			case 7:
				everything(func() {
					if _, err := l.e.FlushPort("mlx5_0", 1); err != nil {
						t.Error(err)
					}
				})
			case 8:
				everything(func() { lid++; setPort(mad.PortActive, 1) })
				lidFloor.Store(uint32(lid))
			case 9:
				setPort(mad.PortDown, 1)
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Millisecond)
				setPort(mad.PortActive, 1)
			case 10:
				setPort(mad.PortActive, mad.LID(1+rand.IntN(2)))
			case 11:
				l.fab.events <- transport.Event{Type: transport.EventReregister, Device: "mlx5_0", Port: 1}
			}
			time.Sleep(time.Duration(rand.IntN(8000)) * time.Millisecond)
		}
		stop.Store(true)
		askers.Wait()
		if s := l.e.Stats(); s.Tables < 15 || s.TableRoutes < 1000 || answered.Load() < 10000 {
			t.Errorf("%d answers, %+v", answered.Load(), s)
		}
	})
}
