// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/cilium/ebpf"
)

// FastBatch is how many paths fit one system call.
const FastBatch = 1024

// PutPaths mirrors answers, at most [FastBatch] at a time. A reader in the kernel
// sees the old or the new answer of a key, never a mixture. On an error some may
// be there.
func (f *Fast) PutPaths(keys []FastKey, paths []FastPath) error {
	n, err := f.obj.AcmPaths.BatchUpdate(keys, paths, nil)
	if err != nil {
		return fmt.Errorf("mirror paths, %d of %d done: %w", n, len(keys), err)
	}
	return nil
}

// DeletePaths ends the mirroring of keys. Once it returned nil, no request whose
// send() begins later is answered with them. A key that is not there is fine.
func (f *Fast) DeletePaths(keys []FastKey) error { return deleteKeys(f.obj.AcmPaths, keys) }

// deleteKeys falls back to one key at a time where the batch stops, which it does
// at the first key that is not there.
func deleteKeys(m *ebpf.Map, keys []FastKey) error {
	if _, err := m.BatchDelete(keys, nil); err == nil {
		return nil
	}
	for i := range keys {
		if err := m.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from mirror: %w", err)
		}
	}
	return nil
}

// PutSource says which slot the source address of a key stands for.
func (f *Fast) PutSource(key *FastKey, slot uint16) error {
	if err := f.obj.AcmSrc.Put(key, uint32(slot)); err != nil {
		return fmt.Errorf("mirror source address: %w", err)
	}
	return nil
}

// DeleteSources makes requests with these sources the daemon's.
func (f *Fast) DeleteSources(keys []FastKey) error { return deleteKeys(f.obj.AcmSrc, keys) }

// Errors of [Fast.Insert].
var (
	ErrFastGone    = errors.New("no such connection")
	ErrFastRefused = errors.New("the kernel did not take the socket")
	ErrFastBusy    = errors.New("the client is in a system call")
)

// What lookup_add returns.
const (
	added     = 0
	noSocket  = 1
	notOurs   = 2
	wantError = 1 << 16   // ACM_WANT_REFUSED
	sentBusy  = 1<<64 - 1 // ACM_SENT_BUSY
)

// Insert puts the sockets of clients onto the map, by their ports, and calls done
// for each: with the bytes that the client had sent until then, whatever comes
// later having met the program; or with an error that wraps [ErrFastGone],
// [ErrFastRefused] or [ErrFastBusy]. A busy one is on the map, and what it has sent
// is told when it is asked for again. A socket that is on the map already is fine.
// With the iterator it costs one walk over the host's TCP sockets, whatever the
// number of ports.
func (f *Fast) Insert(ports []uint16, done func(port uint16, sent uint64, err error)) error {
	if f.plan.Insert == FastInsertIter {
		return f.walk(ports, done)
	}
	for _, p := range ports {
		if err := f.lookup(p, done); err != nil {
			return err
		}
	}
	return nil
}

// busyTries bounds how often a client is looked at in one go that is in a system
// call, as one is for some microseconds. One that waits there is not, for this purpose;
// one that lost its processor there is.
const busyTries = 100

func (f *Fast) lookup(port uint16, done func(port uint16, sent uint64, err error)) error {
	binary.NativeEndian.PutUint16(f.input[14:], port)
	binary.NativeEndian.PutUint16(f.input[16:], f.cfg.Port)
	for range busyTries {
		ret, err := f.obj.LookupAdd.Run(&ebpf.RunOptions{Data: f.input[:]})
		if err != nil {
			return fmt.Errorf("lookup_add: %w", err)
		}
		switch ret {
		case noSocket, notOurs:
			done(port, 0, ErrFastGone)
			return nil
		case added:
		default:
			if err := f.refusal(port); err != nil {
				done(port, 0, err)
				return nil
			}
		}
		if sent := f.conns[port].sent.Load(); sent != sentBusy {
			done(port, sent, nil)
			return nil
		}
		runtime.Gosched()
	}
	done(port, 0, ErrFastBusy)
	return nil
}

// refusal tells a socket that is on the map already, as a connection's has been
// since it connected, from one that the kernel does not want there: the map is
// full, or another program has it.
func (f *Fast) refusal(port uint16) error {
	var cookie uint64
	if f.obj.AcmCli.Lookup(uint64(port), &cookie) == nil {
		return nil
	}
	return ErrFastRefused
}

func (f *Fast) walk(ports []uint16, done func(port uint16, sent uint64, err error)) error {
	for _, p := range ports {
		f.conns[p].sent.Store(sentBusy)
		f.want[p].Store(uint64(f.cfg.Port))
	}
	defer func() { // after a walk that failed: no later one may add them
		for _, p := range ports {
			f.want[p].Store(0)
		}
	}()
	r, err := f.iter.Open()
	if err != nil {
		return fmt.Errorf("iter_add: %w", err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("iter_add: %w", err)
	}
	for _, p := range ports {
		err := error(nil)
		sent := f.conns[p].sent.Load()
		switch f.want[p].Swap(0) {
		case 0:
		case wantError:
			err = f.refusal(p)
		default:
			err = ErrFastGone
		}
		if err == nil && sent == sentBusy {
			err = ErrFastRefused
		}
		done(p, sent, err)
	}
	return nil
}

// Counts sums what became of messages, over endpoints and CPUs.
func (f *Fast) Counts() (sum [NumKernelWords]uint64) {
	for i := range f.kstat {
		for j := range sum {
			sum[j] += load(&f.kstat[i].Word[j])
		}
	}
	return sum
}
