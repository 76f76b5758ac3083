// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Sizes of the fast path's maps, as in acm_maps.h.
const (
	FastPaths   = 1 << 16  // paths that can be mirrored, unless configured otherwise
	FastSources = 1 << 12  // source addresses of this node
	FastGens    = 1 << 12  // generations of scopes
	fastSources = FastGens // generation of chosen sources, behind those
	fastPorts   = 1 << 16  // clients are told apart by their port
)

// FastNoSource is the slot in the key of a request that names no source, and of
// a path request.
const FastNoSource = 0xffff

// FastKey names a path, or with Slot 0 a source address, as struct acm_key.
type FastKey struct {
	Slot uint16 // the engine's slot of the source, or FastNoSource
	Kind uint8  // 1 name, 2 IPv4, 3 IPv6, 0x10 path record
	_    [5]uint8
	Addr [64]byte // names in lower case, zero to the end; or the record as asked
}

// FastPath is a mirrored answer, as struct acm_path. Words are in host order.
type FastPath struct {
	Expires  uint64 // ns of CLOCK_MONOTONIC; not served from then on
	Gen      uint64 // value of generation GenSlot when the answer was true
	Version  uint64 // of UseSlot then, see [Fast.Void]
	Sources  uint64 // see [Fast.SetSources]; only of a question by address that names no source
	GenSlot  uint32
	UseSlot  uint32 // see [Fast.Used]
	Endpoint uint16 // row of the counters
	Len      uint16 // of the whole reply: 88 or 160
	_        uint32
	Reply    [144]byte // the reply behind its header
}

// fastUse is struct acm_use.
type fastUse struct{ seconds, version atomic.Uint64 }

// FastConn is what the daemon has done for the connection of one client port.
// The program compares it with what the client's socket has sent and read: it
// answers only when they agree. One goroutine writes it, with [FastConn.Publish].
type FastConn struct{ answered, replied, held, sent atomic.Uint64 }

// Take makes the slot that of a connection that was just accepted, before
// anything is read from it.
func (c *FastConn) Take() { c.reset(1) }

// Release gives the slot up when the connection is closed.
func (c *FastConn) Release() { c.reset(0) }

func (c *FastConn) reset(held uint64) {
	c.held.Store(1) // nobody else puts a socket of this port onto the map meanwhile
	c.answered.Store(0)
	c.replied.Store(0)
	c.held.Store(held)
}

// Publish says how many bytes of requests were answered and of replies written
// since the connection began. It must come before the write: the program also
// wants the client to have read these bytes.
func (c *FastConn) Publish(answered, replied uint64) {
	c.replied.Store(replied)
	c.answered.Store(answered)
}

// FastConfig says what [LoadFast] loads.
type FastConfig struct {
	Port   uint16 // of the daemon's listener on 127.0.0.1
	All    bool   // also add sockets as they connect, host-wide, by way of the root cgroup
	Cgroup string // of All; "": the root of the unified hierarchy
	Paths  int    // most mirrored paths; 0: FastPaths
	Conns  int    // most clients on the map; 0: 16384
	Insert string // the only way to put sockets there that is tried, as in FastPlan; "": the best

	// Maps has the counters and the kill switch. Without it, or where it is in
	// ordinary memory, the programs have ones of their own.
	Maps *Maps
}

// FastPlan is how the fast path works on this kernel.
type FastPlan struct {
	Insert string `json:"insert"` // "tc": by lookup; "iter": by a walk over the TCP sockets
	Unread string `json:"unread"` // where unread replies show: "rmem", the socket's charge; "psock"
	Coarse bool   `json:"coarse"` // expiry is read from the coarse clock
	All    bool   `json:"all"`    // sockets are added as they connect
}

// Fast is a loaded fast path. Methods are safe for concurrent use, apart from
// Insert, which one goroutine at a time may call; none may be called after Close.
type Fast struct {
	cfg  FastConfig
	plan FastPlan
	obj  fastObjects
	iter *link.Iter
	ops  link.Link
	test *fastTest // until EndProof

	pieces [][]byte // mapped arrays
	meta   []fastAcmHeader
	conns  []FastConn
	gen    []atomic.Uint64
	use    []fastUse
	want   []atomic.Uint64
	kstat  []fastAcmKwords

	input [64]byte // of lookup_add
}

// openFast loads the programs in one way, switched off.
func openFast(cfg FastConfig, plan FastPlan) (f *Fast, err error) {
	f = &Fast{cfg: cfg, plan: plan}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
			f = nil
		}
	}()
	spec, err := loadFast()
	if err != nil {
		return f, err
	}
	opts, err := f.prepare(spec)
	if err != nil {
		return f, err
	}
	_ = rlimit.RemoveMemlock() // as in Open
	coll, err := ebpf.NewCollectionWithOptions(spec, opts)
	if err != nil {
		return f, err
	}
	if err := coll.Assign(&f.obj.fastMaps); err != nil {
		coll.Close()
		return f, err
	}
	f.obj.MsgVerdict, f.obj.LookupAdd = coll.DetachProgram("msg_verdict"), coll.DetachProgram("lookup_add")
	f.obj.IterAdd, f.obj.SockopsConn = coll.DetachProgram("iter_add"), coll.DetachProgram("sockops_conn")
	coll.Close() // what was not assigned
	if err := f.mapArrays(); err != nil {
		return f, err
	}
	return f, f.attach()
}

// prepare freezes the constants, sizes the maps and leaves out what the plan
// does not use.
func (f *Fast) prepare(spec *ebpf.CollectionSpec) (opts ebpf.CollectionOptions, err error) {
	cookie, err := netnsCookie()
	if err != nil && f.plan.All {
		return opts, fmt.Errorf("network namespaces cannot be told apart: %w", err)
	}
	for name, v := range map[string]any{
		"server_port": f.cfg.Port, "netns": cookie,
		"coarse": truth(f.plan.Coarse), "psock": truth(f.plan.Unread == unreadPsock),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return opts, fmt.Errorf("constant %s: %w", name, err)
		}
	}
	if f.cfg.Paths > 0 {
		spec.Maps[fastMapAcmPaths].MaxEntries = uint32(f.cfg.Paths)
		spec.Maps[fastMapAcmUse].MaxEntries = uint32(f.cfg.Paths)
	}
	if f.cfg.Conns > 0 {
		spec.Maps[fastMapAcmCli].MaxEntries = uint32(f.cfg.Conns)
	}
	for program, used := range map[string]bool{
		fastProgLookupAdd: f.plan.Insert == insertTC, fastProgIterAdd: f.plan.Insert == FastInsertIter, fastProgSockopsConn: f.plan.All,
	} {
		if !used {
			delete(spec.Programs, program)
		}
	}
	if f.cfg.Maps == nil {
		return opts, nil
	}
	if opts, err = f.cfg.Maps.Share(spec); errors.Is(err, ErrNoMaps) {
		err = nil
	}
	return opts, err
}

func truth(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func (f *Fast) mapArrays() (err error) {
	m := &f.obj.fastMaps
	if f.meta, err = mmap[fastAcmHeader](m.AcmMeta, &f.pieces); err != nil {
		return err
	}
	if f.conns, err = mmap[FastConn](m.AcmConns, &f.pieces); err != nil {
		return err
	}
	if f.gen, err = mmap[atomic.Uint64](m.AcmGen, &f.pieces); err != nil {
		return err
	}
	if f.use, err = mmap[fastUse](m.AcmUse, &f.pieces); err != nil {
		return err
	}
	if f.want, err = mmap[atomic.Uint64](m.AcmWant, &f.pieces); err != nil {
		return err
	}
	f.kstat, err = mmap[fastAcmKwords](m.AcmKstat, &f.pieces)
	return err
}

func (f *Fast) attach() (err error) {
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: f.obj.AcmCli.FD(), Program: f.obj.MsgVerdict, Attach: ebpf.AttachSkMsgVerdict})
	if err != nil {
		return fmt.Errorf("attach msg_verdict: %w", err)
	}
	if f.plan.Insert == FastInsertIter {
		if f.iter, err = link.AttachIter(link.IterOptions{Program: f.obj.IterAdd}); err != nil {
			return fmt.Errorf("attach iter_add: %w", err)
		}
	}
	if f.plan.All {
		group := f.cfg.Cgroup
		if group == "" {
			group = cgroupRoot()
		}
		f.ops, err = link.AttachCgroup(link.CgroupOptions{
			Path: group, Attach: ebpf.AttachCGroupSockOps, Program: f.obj.SockopsConn})
		if err != nil {
			return fmt.Errorf("attach sockops_conn to %s: %w", group, err)
		}
	}
	return nil
}

// cgroupRoot is where the unified hierarchy is mounted.
func cgroupRoot() string {
	const hybrid = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(hybrid + "/cgroup.procs"); err == nil {
		return hybrid
	}
	return "/sys/fs/cgroup"
}

// Close takes all sockets off the map and the programs out of the kernel; what
// clients have not read yet of its answers is lost. What [Fast.Conn] returned must
// not be used any more.
func (f *Fast) Close() error {
	if f.meta != nil {
		f.SetOn(false)
	}
	errs := []error{f.EndProof()}
	if f.ops != nil {
		errs = append(errs, f.ops.Close())
	}
	if f.iter != nil {
		errs = append(errs, f.iter.Close())
	}
	errs = append(errs, f.obj.Close())
	for _, b := range f.pieces {
		errs = append(errs, unix.Munmap(b))
	}
	f.pieces = nil
	return errors.Join(errs...)
}

// netnsCookie identifies the caller's network namespace (Linux 5.14).
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// Plan says how it works here.
func (f *Fast) Plan() FastPlan { return f.plan }

// SetOn is the kill switch, one store: no request whose send() begins after
// SetOn(false) returned is answered by the kernel.
func (f *Fast) SetOn(on bool) { atomic.StoreUint32(&f.meta[0].FastOn, truth(on)) }

// On reads the switch.
func (f *Fast) On() bool { return atomic.LoadUint32(&f.meta[0].FastOn) != 0 }

// Conn is the slot of the connection from 127.0.0.1:port.
func (f *Fast) Conn(port uint16) *FastConn { return &f.conns[port] }

// Generation reads a generation; slots are below [FastGens].
func (f *Fast) Generation(slot uint32) uint64 { return f.gen[slot].Load() }

// Raise ends the life of everything that was mirrored under a generation, with
// one store.
func (f *Fast) Raise(slot uint32) { f.gen[slot].Add(1) }

// Used is when the answer of a slot was last given by the kernel, in seconds of
// CLOCK_MONOTONIC; 0: never.
func (f *Fast) Used(slot uint32) uint64 { return f.use[slot].seconds.Load() }

// Forget makes a slot one that was never used, for another path.
func (f *Fast) Forget(slot uint32) { f.use[slot].seconds.Store(0) }

// Version reads the version of a slot.
func (f *Fast) Version(slot uint32) uint64 { return f.use[slot].version.Load() }

// Void ends the life of the one answer that was mirrored with a slot, with one
// store: no request whose send() begins after it returned is answered with it. An
// answer of an earlier version that is written later is void as well.
func (f *Fast) Void(slot uint32) { f.use[slot].version.Add(1) }

// SetSources says under which generation of the host's routing chosen sources are
// true: answers to questions that name no source and were mirrored under another
// one are void when it returns.
func (f *Fast) SetSources(gen uint64) { f.gen[fastSources].Store(gen) }
