// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"acmd/mad"
	"acmd/mad/ibsim"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// saBench asks the SA for paths over the simulator's sockets: what there is to
// gain behind a daemon, and what the transport itself costs.
type saBench struct {
	port    transport.Port
	info    transport.PortInfo
	targets []target
	sgid    mad.GID
	window  int
	total   int

	pending map[uint32]saFlight
	lat     []time.Duration
	failed  int
	why     string
	tid     uint32
	inTurn  bool // every target in turn instead of by chance
	json    bool
}

type saFlight struct {
	at time.Time
	t  *target
}

const saPatience = 3 * time.Second

// query writes PathRecord Get to a target, by GID or by LID as it is given.
func (b *saBench) query(s *ring.Slot, t *target) {
	h, p := s.Header(), s.MAD()
	*h = mad.UserHeader{}
	h.SetLID(b.info.SMLID)
	h.SetQPN(mad.QP1)
	mask := sa.PathReversible | sa.PathNumPath
	byGID := strings.HasPrefix(t.text, "gid:")
	if byGID {
		mask |= sa.PathDGID | sa.PathSGID
	} else {
		mask |= sa.PathDLID | sa.PathSLID
	}
	sa.Init(p, mad.MethodGet, sa.AttrPathRecord, mask)
	b.tid++
	p.SetTID(mad.TID(b.tid))
	r := sa.Path(p)
	r.SetReversibleNumPath(true, 1)
	if byGID {
		r.SetDGID(t.dgid)
		r.SetSGID(b.sgid)
	} else {
		r.SetDLID(mad.LID(t.dlid))
		r.SetSLID(b.info.LID)
	}
	b.pending[b.tid] = saFlight{time.Now(), t}
}

// take checks an answer.
func (b *saBench) take(s *ring.Slot) {
	h, p := s.Header(), s.MAD()
	f, ok := b.pending[p.TID().Low()]
	if !ok {
		return
	}
	delete(b.pending, p.TID().Low())
	r := sa.Path(p)
	switch {
	case h.Status() != 0 || p.Status() != 0 || p.Method() != mad.MethodGetResp:
		b.failed++
		b.why = fmt.Sprintf("%s: MAD status %#x, packet status %d", f.t.text, p.Status(), h.Status())
	case r.DLID() != mad.LID(f.t.dlid) || r.DGID() != f.t.dgid:
		b.failed++
		b.why = f.t.text + ": wrong path record"
	default:
		b.lat = append(b.lat, time.Since(f.at))
	}
}

// run asks total queries with up to window outstanding.
func (b *saBench) run() error {
	out, in := make([]*ring.Slot, b.window), make([]*ring.Slot, b.window)
	if b.port.Ring().GetN(out) != b.window || b.port.Ring().GetN(in) != b.window {
		return fmt.Errorf("window %d: at most %d", b.window, b.port.Ring().Cap()/2)
	}
	defer func() {
		for i := range out {
			out[i].Release()
			in[i].Release()
		}
	}()
	b.pending, b.lat, b.failed, b.why = map[uint32]saFlight{}, b.lat[:0], 0, ""
	for asked := 0; len(b.lat)+b.failed < b.total; {
		k := 0
		for ; len(b.pending) < b.window && asked < b.total; k++ {
			i := asked % len(b.targets)
			if !b.inTurn {
				i = rand.IntN(len(b.targets))
			}
			b.query(out[k], &b.targets[i])
			asked++
		}
		for done := 0; done < k; {
			n, err := b.port.Send(out[done:k])
			if err != nil {
				return err
			}
			done += n
		}
		n, err := b.port.Recv(in, time.Now().Add(saPatience))
		if err != nil {
			return err
		}
		if n == 0 {
			b.failed += len(b.pending)
			b.why = fmt.Sprintf("no answer within %v", saPatience)
			clear(b.pending)
		}
		for _, s := range in[:n] {
			b.take(s)
		}
	}
	return nil
}

// quantile of sorted durations, in microseconds.
func quantile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Nanoseconds()) / 1000
}

func (b *saBench) measure(pid, simPid int) error {
	use := startUsage(0, []int{pid, simPid})
	if err := b.run(); err != nil {
		return err
	}
	r := use.stop()
	per := func(seconds float64) float64 { return seconds * 1e6 / float64(b.total) }
	slices.Sort(b.lat)
	r.Server, r.Conns, r.Pipeline, r.Targets = "SA", b.window, 1, len(b.targets)
	r.OK, r.Failed, r.FirstError = int64(len(b.lat)), int64(b.failed), b.why
	r.PerSec, r.CPUPer1M = float64(r.OK)/r.Seconds, per(r.OwnCPU)
	r.P50us, r.P99us, r.P999us, r.MaxUs = quantile(b.lat, .5), quantile(b.lat, .99), quantile(b.lat, .999), quantile(b.lat, 1)
	if b.json {
		r.print(true)
		return nil
	}
	fmt.Printf("%6d %6d %10.0f %9.1f %9.1f %9.1f %12.1f %12.1f %12.1f %6d\n", b.window, b.total, r.PerSec,
		r.P50us, r.P99us, r.MaxUs, r.CPUPer1M, per(r.AlsoCPU[0]), per(r.AlsoCPU[1]), b.failed)
	if b.why != "" {
		fmt.Println("  last failure:", b.why)
	}
	return nil
}

func cmdSABench(args []string) error {
	fs := flag.NewFlagSet("sabench", flag.ExitOnError)
	var (
		base   = fs.String("sim", "", "ibsim socket base name, default $IBSIM_SOCKNAME")
		remote = fs.String("remote", "", "host:port of a simulator in remote mode")
		node   = fs.String("node", "node-a", "simulated node to attach to")
		file   = fs.String("dests", "", "file of destinations: lid:N or gid:X, dgid, dlid")
		window = fs.Int("w", 1, "queries outstanding")
		total  = fs.Int("n", 2000, "queries")
		pid    = fs.Int("pid", 0, "opensm process to account")
		simPid = fs.Int("simpid", 0, "ibsim process to account")
		inTurn = fs.Bool("in-turn", false, "ask for every destination in turn, not by chance")
		asJSON = fs.Bool("json", false, "one JSON object per run")
		reps   = fs.Int("reps", 1, "repeat")
	)
	fs.Parse(args)
	if *window < 1 || *total < 1 {
		return errors.New("want -w and -n of 1 at least")
	}
	f, err := os.Open(*file)
	if err != nil {
		return err
	}
	defer f.Close()
	targets, err := readTargets(f, "")
	if err != nil || len(targets) == 0 {
		return fmt.Errorf("destinations: %v (%d)", err, len(targets))
	}
	fab, err := ibsim.New(ibsim.Config{Base: *base, Remote: *remote, Node: *node, Slots: max(2**window, 64)})
	if err != nil {
		return err
	}
	defer fab.Close()
	list, err := fab.Devices()
	if err != nil || len(list) != 1 {
		return fmt.Errorf("device of %s: %v", *node, err)
	}
	port, err := fab.Open(list[0].Name, 1)
	if err != nil {
		return err
	}
	defer port.Close()
	b := &saBench{port: port, info: list[0].Ports[0], targets: targets, window: *window, total: *total}
	b.sgid = b.info.GIDs[0]
	b.inTurn, b.json = *inTurn, *asJSON
	if !b.json {
		printSAHeader(*node, &b.info)
	}
	for range *reps {
		if err := b.measure(*pid, *simPid); err != nil {
			return err
		}
	}
	return nil
}

func printSAHeader(node string, info *transport.PortInfo) {
	fmt.Printf("attached to %s: lid %d, SM lid %d\n", node, info.LID, info.SMLID)
	fmt.Printf("%6s %6s %10s %9s %9s %9s %12s %12s %12s %6s\n", "window", "n", "queries/s", "p50 us", "p99 us", "max us",
		"own s/1M", "opensm s/1M", "ibsim s/1M", "failed")
}
