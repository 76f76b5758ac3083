// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// probed is the function of librdmacm that asks the ACM service.
const probed = "rdma_getaddrinfo"

// ClientTrace measures calls of rdma_getaddrinfo in all programs that have one
// copy of librdmacm loaded. Its methods are safe for concurrent use.
type ClientTrace struct {
	coll  *ebpf.Collection
	slow  *ringbuf.Reader
	links []link.Link
	multi bool
}

// Caller is what one process has called.
type Caller struct {
	PID     uint32 // in the initial namespace
	Command string
	Calls   uint64
	Failed  uint64 // with a result other than 0
	Slowest time.Duration
	Latency Histogram
}

// SlowCall is one call that took long.
type SlowCall struct {
	PID, TID uint32 // in the initial namespace
	Command  string
	Took     time.Duration
	Result   int32 // of the function: 0, or -1 with errno
}

// ClientLosses count what a [ClientTrace] could not keep.
type ClientLosses struct {
	Callers uint64 // calls of processes beyond 4096
	Calls   uint64 // calls that began before the trace, or beyond 16384 at a time
	Slow    uint64 // slow calls that were not taken in time
}

// TraceClients attaches to one file, such as /usr/lib/x86_64-linux-gnu/
// librdmacm.so.1, whatever path programs have loaded it by; calls of at least slow
// are told by [ClientTrace.NextSlow]. It needs CAP_BPF and CAP_PERFMON, and on
// kernels without uprobe.multi (6.6) CAP_SYS_ADMIN.
func TraceClients(library string, slow time.Duration) (*ClientTrace, error) {
	_ = rlimit.RemoveMemlock() // kernels before 5.11; where it is refused, making maps says so
	t, err := traceClients(library, slow, true)
	if err == nil {
		return t, nil
	}
	t, perr := traceClients(library, slow, false)
	if errors.Is(perr, unix.EPERM) {
		return nil, fmt.Errorf("CAP_BPF and CAP_PERFMON are needed, or root before Linux 6.6: %w", unix.EPERM)
	}
	if perr != nil {
		return nil, fmt.Errorf("uprobe.multi: %w; uprobe: %w", err, perr)
	}
	return t, nil
}

func traceClients(library string, slow time.Duration, multi bool) (t *ClientTrace, err error) {
	offset, ok := resultOffset[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("results of functions on %s: %w", runtime.GOARCH, errors.ErrUnsupported)
	}
	spec, err := loadClients()
	if err != nil {
		return nil, fmt.Errorf("embedded programs: %w", err)
	}
	// Of the maps that programs share none is used here. Of the programs only those
	// that will be attached: a kernel that lacks the other kind refuses them.
	for _, name := range []string{acmMapAcmMeta, acmMapAcmKstat, acmMapAcmLat} {
		delete(spec.Maps, name)
	}
	enter, leave, other := "gai_enter", "gai_leave", "_perf"
	if !multi {
		enter, leave, other = "gai_enter_perf", "gai_leave_perf", ""
	}
	delete(spec.Programs, "gai_enter"+other)
	delete(spec.Programs, "gai_leave"+other)
	err = errors.Join(spec.Variables["acm_result_offset"].Set(offset), spec.Variables["acm_slow_ns"].Set(uint64(slow)))
	if err != nil {
		return nil, fmt.Errorf("embedded programs: %w", err)
	}
	file, err := link.OpenExecutable(library)
	if err != nil {
		return nil, err
	}
	t = &ClientTrace{multi: multi}
	if t.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, err
	}
	if t.slow, err = ringbuf.NewReader(t.coll.Maps["acm_slow"]); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	// The return first: a call that only its end is seen of is counted as lost.
	for _, name := range []string{leave, enter} {
		l, err := t.attach(file, t.coll.Programs[name], name == leave)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", library, err), t.Close())
		}
		t.links = append(t.links, l)
	}
	return t, nil
}

func (t *ClientTrace) attach(file *link.Executable, p *ebpf.Program, atReturn bool) (link.Link, error) {
	switch {
	case t.multi && atReturn:
		return file.UretprobeMulti([]string{probed}, p, nil)
	case t.multi:
		return file.UprobeMulti([]string{probed}, p, nil)
	case atReturn:
		return file.Uretprobe(probed, p, nil)
	}
	return file.Uprobe(probed, p, nil)
}

// resultOffset is where struct pt_regs has the register of a function's result
// (arch/*/include/asm/ptrace.h).
var resultOffset = map[string]uint32{"amd64": 80, "arm64": 0}

// How names the kind of probe.
func (t *ClientTrace) How() string {
	if t.multi {
		return "uprobe.multi"
	}
	return "uprobe"
}

// Read lists the processes that have called so far, in no order, and what is not
// in the list.
func (t *ClientTrace) Read() (list []Caller, lost ClientLosses, err error) {
	var pid uint32
	var c clientsAcmCaller
	it := t.coll.Maps["acm_callers"].Iterate()
	for it.Next(&pid, &c) {
		if c.Calls == 0 {
			continue // just begun
		}
		list = append(list, Caller{
			PID: pid, Command: cString(c.Comm[:]), Calls: c.Calls, Failed: c.Failed,
			Slowest: time.Duration(c.Slowest), Latency: Histogram{Buckets: c.Bucket, Sum: c.Sum},
		})
	}
	if err := it.Err(); err != nil {
		return nil, lost, fmt.Errorf("callers: %w", err)
	}
	for i, n := range []*uint64{&lost.Callers, &lost.Calls, &lost.Slow} {
		if err := t.coll.Maps["acm_lost"].Lookup(uint32(i), n); err != nil {
			return nil, lost, fmt.Errorf("losses: %w", err)
		}
	}
	return list, lost, nil
}

// NextSlow waits for a slow call. The error is [io.EOF] when there will be no more
// after [ClientTrace.Stop], and [os.ErrClosed] after [ClientTrace.Close].
func (t *ClientTrace) NextSlow() (SlowCall, error) {
	r, err := t.slow.Read()
	if errors.Is(err, ringbuf.ErrFlushed) {
		err = io.EOF
	}
	if err != nil {
		return SlowCall{}, err
	}
	var c clientsAcmCall
	if err := binary.Read(bytes.NewReader(r.RawSample), binary.NativeEndian, &c); err != nil {
		return SlowCall{}, fmt.Errorf("slow call: %w", err)
	}
	return SlowCall{PID: c.Pid, TID: c.Tid, Command: cString(c.Comm[:]), Took: time.Duration(c.Ns), Result: c.Result}, nil
}

// Stop takes the probes away. What they have seen can still be read.
func (t *ClientTrace) Stop() (err error) {
	for _, l := range t.links {
		err = errors.Join(err, l.Close())
	}
	t.links = nil
	if t.slow != nil {
		err = errors.Join(err, t.slow.Flush())
	}
	return err
}

// Close takes the probes away and forgets what they have seen.
func (t *ClientTrace) Close() error {
	err := t.Stop()
	if t.slow != nil {
		err = errors.Join(err, t.slow.Close())
	}
	t.coll.Close()
	return err
}
