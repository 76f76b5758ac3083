// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Reader reads the pinned counters of another process, whether that is alive or
// not. It needs no capability where the pins may be read, on kernels from 5.19.
// It is not safe for concurrent use.
type Reader struct{ maps acmMaps }

// Load opens the pins of a directory, see [PinDir], for reading. The error is
// fs.ErrNotExist where nobody ever counted.
func Load(dir string) (*Reader, error) {
	spec, err := loadAcm()
	if err != nil {
		return nil, fmt.Errorf("embedded maps: %w", err)
	}
	r := new(Reader)
	for _, p := range r.maps.pins() {
		if *p.m, err = ebpf.LoadPinnedMap(filepath.Join(dir, p.name), &ebpf.LoadPinOptions{ReadOnly: true}); err != nil {
			r.Close()
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, p.name), err)
		}
		want := spec.Maps[p.name]
		if (*p.m).Type() != want.Type || (*p.m).ValueSize() != want.ValueSize {
			r.Close()
			return nil, fmt.Errorf("%s: layout of another version of acmd", filepath.Join(dir, p.name))
		}
	}
	return r, nil
}

// Close closes the maps.
func (r *Reader) Close() error { return r.maps.Close() }

// Read fills a snapshot, in a system call or two for each map.
func (r *Reader) Read(s *Snapshot) error {
	a := new(arrays)
	head, err := readArray[header](r.maps.AcmMeta, 1)
	if err != nil {
		return err
	}
	a.head = &head[0]
	if a.head.Magic != magic || a.head.Schema != schema {
		return fmt.Errorf("counters of schema %d, this program knows %d", a.head.Schema, schema)
	}
	n := int(min(a.head.Endpoints, maxEndpoints))
	if a.stats, err = readArray[words](r.maps.AcmStats, statShards); err != nil {
		return err
	}
	if a.eps, err = readArray[endpoint](r.maps.AcmEp, n); err != nil {
		return err
	}
	if a.kstat, err = readArray[kwords](r.maps.AcmKstat, n*int(a.head.Kshards)); err != nil {
		return err
	}
	if a.lat, err = readArray[hist](r.maps.AcmLat, latShards*latClasses); err != nil {
		return err
	}
	if a.sa, err = readArray[hist](r.maps.AcmSa, latShards*latClasses); err != nil {
		return err
	}
	if a.flights, err = readArray[slow](r.maps.AcmFlight, int(min(a.head.Flights, maxFlights))); err != nil {
		return err
	}
	a.read(s)
	return nil
}

// readArray copies the first n elements.
func readArray[T any](m *ebpf.Map, n int) ([]T, error) {
	n = min(n, int(m.MaxEntries()))
	out := make([]T, n)
	if n == 0 {
		return out, nil
	}
	var at ebpf.MapBatchCursor
	got, err := m.BatchLookup(&at, make([]uint32, n), out, nil)
	if err == nil || errors.Is(err, ebpf.ErrKeyNotExist) {
		if got == n {
			return out, nil
		}
		err = fmt.Errorf("%d elements of %d", got, n)
	}
	if !errors.Is(err, ebpf.ErrNotSupported) { // kernels before 5.6
		return nil, fmt.Errorf("%v: %w", m, err)
	}
	for i := range out {
		if err := m.Lookup(uint32(i), &out[i]); err != nil {
			return nil, fmt.Errorf("%v: %w", m, err)
		}
	}
	return out, nil
}
