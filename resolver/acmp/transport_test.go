// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
)

// unable hides what a transport can do.
type unable struct {
	transport.Port
	caps transport.Caps
}

func (u unable) Caps() transport.Caps { return u.caps }

// On a transport without multicast Locate fails at once, and nothing is joined.
func TestNoMulticast(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{}, func(p transport.Port) transport.Port { return unable{p, transport.Caps{}} })
		defer nd.stop()
		ch := nd.locate(v4(2), time.Second)
		if len(ch) != 1 {
			t.Fatal("not told at once")
		}
		if got := <-ch; !errors.Is(got.err, ErrNoMulticast) || !errors.Is(got.err, resolver.ErrUnknown) || !strings.Contains(got.err.Error(), "no group on this transport") {
			t.Error(got.err)
		}
		if log.count(0) != 0 {
			t.Error("joined")
		}
	})
}

// A port without a queue pair of its own sends by QP1, as umad does, with the
// kernel's rule that a TID cannot be sent twice at a time.
func TestByQP1(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4, NoListen: true, KernelTimers: true}, func(t *testing.T, f *fabric.Fabric) {
		log, stop := watch(f)
		defer stop()
		nd := start(t, f, 0, Config{Retries: 2})
		defer nd.stop()
		got := <-nd.locate(resolver.NameAddr("nobody"), 0)
		if !errors.Is(got.err, resolver.ErrTimeout) || len(log.sent()) != 3 {
			t.Errorf("%v after %d requests", got.err, len(log.sent()))
		}
		if st := nd.client.Stats(); st.SendErrors != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// The engine's view of the SA client.
// A table is the paths of the SA as it tells them, however many packets they are, or an
// error that says why there is none.
func TestEngineSATable(t *testing.T) {
	for _, nodes := range []int{2, 4, 500} { // one packet, two, many
		inBubble(t, fabric.Config{Nodes: nodes}, func(t *testing.T, f *fabric.Fabric) {
			nd := start(t, f, 0, Config{})
			var e resolver.Tabler = EngineSA{nd.client}
			var rec madsa.PathRecord
			rec.SetSGID(f.GID(0, 1))
			rec.SetReversibleNumPath(true, 1)
			const mask = madsa.PathSGID | madsa.PathReversible | madsa.PathNumPath
			ask := func() (paths []madsa.PathRecord, err error) {
				done := make(chan struct{})
				e.Table(mask, &rec, func(p []madsa.PathRecord, e error) { paths, err = p, e; close(done) })
				<-done
				return paths, err
			}
			paths, err := ask()
			if err != nil || len(paths) != nodes {
				t.Fatalf("%d nodes: %d paths, %v", nodes, len(paths), err)
			}
			for i := range paths {
				q := rec
				q.SetDGID(paths[i].DGID())
				if want, _ := f.SAPath(mask|madsa.PathDGID, &q); paths[i] != want {
					t.Errorf("%d nodes: path %d is\n% x, alone\n% x", nodes, i, paths[i], want)
				}
			}
			refused := f.AddRule(fabric.Rule{Attr: madsa.AttrPathRecord, Do: fabric.Answer, Status: mad.Status(madsa.StatusNoResources) << 8})
			if paths, err := ask(); err == nil || len(paths) != 0 {
				t.Errorf("refused: %d paths, %v", len(paths), err)
			}
			refused.Remove()
			f.AddRule(fabric.Rule{Attr: madsa.AttrPathRecord, Do: fabric.Drop})
			begin := time.Now()
			if _, err := ask(); err == nil || time.Since(begin) < 2*tableGap {
				t.Errorf("not answered: %v after %v", err, time.Since(begin))
			}
		})
	}
}

func TestEngineSA(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{})
		var e resolver.SA = EngineSA{nd.client}
		var rec madsa.PathRecord
		rec.SetSGID(f.GID(0, 1))
		rec.SetDGID(f.GID(2, 1))
		ch := make(chan resolver.SAResult, 1)
		ask := func() resolver.SAResult {
			e.Path(madsa.PathSGID|madsa.PathDGID, &rec, func(r resolver.SAResult) { ch <- r })
			return <-ch
		}
		want, _ := f.SAPath(madsa.PathSGID|madsa.PathDGID, &rec)
		if r := ask(); r.Err != nil || !r.Valid || r.Path != want || r.Tries != 1 {
			t.Errorf("%+v", r)
		}
		f.AddRule(fabric.Rule{Attr: madsa.AttrPathRecord, Do: fabric.Answer, Status: 0x0300, Count: 1})
		if r := ask(); r.Err != nil || !r.Valid || r.Status != 0x0300 {
			t.Errorf("%+v", r)
		}
		f.AddRule(fabric.Rule{Attr: madsa.AttrPathRecord, Do: fabric.Drop})
		if r := ask(); !errors.Is(r.Err, resolver.ErrTimeout) || r.Valid || r.Tries != 3 {
			t.Errorf("%+v", r)
		}
		down := info(f, 0)
		down.State = mad.PortDown
		e.Update(down)
		if r := ask(); !errors.Is(r.Err, resolver.ErrDown) {
			t.Errorf("%+v", r)
		}
		e.Close()
		if r := ask(); !errors.Is(r.Err, resolver.ErrDown) {
			t.Errorf("%+v", r)
		}
	})
}
