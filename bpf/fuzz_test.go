// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"testing"
	"unsafe"
)

// bytesOf is a value as the bytes that a pin has.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// A reader makes the best of what is in the pins: they may be of a daemon that was
// killed while it wrote, or of somebody who meant harm.
func FuzzRead(f *testing.F) {
	m := NewMemory()
	ep := m.Endpoint("mlx5_0", 1, 0xffff, 1)
	m.RecordSlow(&SlowRequest{Endpoint: ep.Row, Kind: 1, Key: []byte("node7")})
	f.Add(bytesOf(m.head), bytesOf(&m.eps[1]), bytesOf(&m.flights[0]), uint8(1))
	f.Add(make([]byte, 400), []byte{}, make([]byte, 200), uint8(0))
	f.Fuzz(func(t *testing.T, head, ep, fl []byte, kernel uint8) {
		a := heap()
		a.kstat = make([]kwords, kernel)
		copy(bytesOf(a.head), head)
		copy(bytesOf(&a.eps[0]), ep)
		copy(bytesOf(&a.flights[5]), fl)
		var s Snapshot
		a.read(&s)
		if len(s.Endpoints) > maxEndpoints || len(s.Slow) > 1 || len(s.RunDir) > len(header{}.RunDir) {
			t.Errorf("%d endpoints, %d slow requests, run directory of %d bytes", len(s.Endpoints), len(s.Slow), len(s.RunDir))
		}
		for _, r := range s.Slow {
			if len(r.Key) > 64 {
				t.Errorf("key of %d bytes", len(r.Key))
			}
		}
	})
}
