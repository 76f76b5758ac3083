// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A tracepoint of ib_mad or ib_umad, and the structure that its program takes the
// record for.
type tracepoint struct{ group, name, record string }

var (
	onSend     = tracepoint{"ib_mad", "ib_mad_ib_send_mad", "ib_mad_ib_send_mad"}
	onResend   = tracepoint{"ib_mad", "ib_mad_send_done_resend", "ib_mad_ib_send_mad"}
	onSent     = tracepoint{"ib_mad", "ib_mad_send_done_handler", "ib_mad_send_done_handler"}
	onAnswer   = tracepoint{"ib_mad", "ib_mad_recv_done_handler", "ib_mad_recv_done_handler"}
	onRead     = tracepoint{"ib_umad", "ib_umad_read_recv", "ib_umad_read_recv"}
	onReturned = tracepoint{"ib_umad", "ib_umad_read_send", "ib_umad_read_recv"}
)

// Trace follows the daemon's SA requests through the kernel, as [Snapshot]'s
// Fabric and FabricWords tell. Its methods are safe for concurrent use; those of
// a nil Trace do nothing.
type Trace struct {
	asked []traceAcmAsk
	base  int64 // CLOCK_MONOTONIC at start, ns
	start time.Time
	links []link.Link
	progs tracePrograms
}

// TraceFabric attaches the programs of tracepoints.bpf.c. The error is
// [os.ErrNotExist] where the kernel has no such tracepoints, as ib_umad is not
// loaded or tracefs not mounted, and [ErrNoMaps] in ordinary memory. It needs
// CAP_BPF, CAP_PERFMON and the right to read tracefs. The trace must be closed
// before the maps.
func (m *Maps) TraceFabric() (*Trace, error) {
	spec, err := loadTrace()
	if err != nil {
		return nil, fmt.Errorf("embedded programs: %w", err)
	}
	if err := checkRecords(spec.Types, tracefs()); err != nil {
		return nil, err
	}
	opts, err := m.Share(spec)
	if err != nil {
		return nil, err
	}
	var o struct {
		tracePrograms
		Asked *ebpf.Map `ebpf:"acm_asked"`
	}
	if err := spec.LoadAndAssign(&o, &opts); err != nil {
		return nil, fmt.Errorf("programs of tracepoints: %w", err)
	}
	defer o.Asked.Close() // the programs and the mapping keep it
	t := &Trace{progs: o.tracePrograms}
	if err := t.setClock(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	var pieces [][]byte
	if t.asked, err = mmap[traceAcmAsk](o.Asked, &pieces); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	// As with the counters: a late writer must not fault.
	runtime.AddCleanup(t, func(b []byte) { _ = unix.Munmap(b) }, pieces[0])
	for _, a := range []struct {
		at   tracepoint
		prog *ebpf.Program
	}{{onRead, o.SaRead}, {onReturned, o.SaReturned}, {onAnswer, o.SaAnswer}, {onSent, o.SaSent}, {onResend, o.SaResend}, {onSend, o.SaSend}} {
		l, err := link.Tracepoint(a.at.group, a.at.name, a.prog, nil)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("tracepoint %s: %w", a.at.name, err), t.Close())
		}
		t.links = append(t.links, l)
	}
	return t, nil
}

// setClock finds CLOCK_MONOTONIC, which programs read, at an instant of Go's own
// clock, which costs no system call: of some tries the one that took least.
func (t *Trace) setClock() error {
	least := int64(math.MaxInt64)
	for range 8 {
		var before, after unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before)
		now := time.Now()
		if err = errors.Join(err, unix.ClockGettime(unix.CLOCK_MONOTONIC, &after)); err != nil {
			return fmt.Errorf("CLOCK_MONOTONIC: %w", err)
		}
		if took := after.Nano() - before.Nano(); took < least {
			least, t.start, t.base = took, now, before.Nano()+took/2
		}
	}
	return nil
}

// Asked says that a request with this TID (its lower half) is written to the
// device next. A TID that comes again before its answer is another copy of the
// same request.
func (t *Trace) Asked(tid uint32) {
	if t == nil {
		return
	}
	a := &t.asked[int(tid)%len(t.asked)]
	now := uint64(t.base + int64(time.Since(t.start)))
	if atomic.LoadUint64(&a.Tid) == uint64(tid) {
		atomic.StoreUint64(&a.Asked, now)
		return
	}
	atomic.StoreUint64(&a.Tid, 0)
	for _, word := range []*uint64{&a.Sent, &a.Copies, &a.Arrived} {
		atomic.StoreUint64(word, 0)
	}
	atomic.StoreUint64(&a.Asked, now)
	atomic.StoreUint64(&a.Tid, uint64(tid))
}

// Programs asks the kernel what the programs cost. It must not run at the same
// time as Close.
func (t *Trace) Programs() []ProgramStats {
	if t == nil {
		return nil
	}
	return statsOf(map[string]*ebpf.Program{
		"sa_send": t.progs.SaSend, "sa_resend": t.progs.SaResend, "sa_sent": t.progs.SaSent,
		"sa_answer": t.progs.SaAnswer, "sa_read": t.progs.SaRead, "sa_returned": t.progs.SaReturned,
	})
}

// Close detaches the programs. Asked may still be called.
func (t *Trace) Close() (err error) {
	if t == nil {
		return nil
	}
	for _, l := range t.links {
		err = errors.Join(err, l.Close())
	}
	t.links = nil
	return errors.Join(err, t.progs.Close())
}

// tracefs is where the kernel describes its tracepoints.
func tracefs() string {
	const dir = "/sys/kernel/tracing"
	if _, err := os.Stat(filepath.Join(dir, "events")); err != nil {
		return "/sys/kernel/debug/tracing" // kernels before 4.1, and where only debugfs is mounted
	}
	return dir
}

// checkRecords compares the structures that the programs were compiled with and
// the formats of the running kernel, field by field.
func checkRecords(types *btf.Spec, tracefs string) error {
	for _, at := range []tracepoint{onSend, onResend, onSent, onAnswer, onRead, onReturned} {
		text, err := os.ReadFile(filepath.Join(tracefs, "events", at.group, at.name, "format"))
		if err != nil {
			return fmt.Errorf("tracepoint %s: %w", at.name, err)
		}
		var record *btf.Struct
		if err := types.TypeByName(at.record, &record); err != nil {
			return fmt.Errorf("embedded programs: %w", err)
		}
		if err := checkRecord(record, text); err != nil {
			return fmt.Errorf("tracepoint %s: %w", at.name, err)
		}
	}
	return nil
}

var formatField = regexp.MustCompile(`field:[^;]*?(\w+)(?:\[\d+\])?;\s*offset:(\d+);\s*size:(\d+);`)

// checkRecord compares one structure with the text of a format file.
func checkRecord(record *btf.Struct, format []byte) error {
	type place struct{ offset, size int }
	fields := map[string]place{}
	for _, m := range formatField.FindAllSubmatch(format, -1) {
		offset, _ := strconv.Atoi(string(m[2])) // digits, says the expression
		size, _ := strconv.Atoi(string(m[3]))
		fields[string(m[1])] = place{offset, size}
	}
	for _, f := range record.Members {
		if f.Name == "common" { // the eight bytes before a record's own fields
			continue
		}
		size, err := btf.Sizeof(f.Type)
		if err != nil {
			return err
		}
		want := place{int(f.Offset.Bytes()), size}
		if got, ok := fields[f.Name]; !ok {
			return fmt.Errorf("this kernel's record has no %s", f.Name)
		} else if got != want {
			return fmt.Errorf("%s has %d bytes at %d in this kernel's record, %d at %d were expected", f.Name, got.size, got.offset, want.size, want.offset)
		}
	}
	return nil
}
