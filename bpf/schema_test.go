// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"io"
	"log/slog"
	"reflect"
	"runtime"
	"testing"
	"unsafe"

	"acmd/bpf/bpftest"

	"github.com/google/go-cmp/cmp"
)

// Pins outlive the daemon that made them. What another daemon finds there must mean
// the same to it: a change here raises ACM_SCHEMA, and with it the name of the pin
// directory.
func TestSchema(t *testing.T) {
	numbers := map[string]Word{
		"unix address request": RequestWord(DoorUnix, KindAddress), "tcp path request": RequestWord(DoorTCP, KindPath),
		"netlink invalid request": RequestWord(DoorNetlink, KindInvalid), "unix success": ReplyWord(DoorUnix, 0),
		"tcp no data": ReplyWord(DoorTCP, 3), "netlink unknown status": ReplyWord(DoorNetlink, 255),
		"bytes in": BytesIn, "endpoints full": EndpointsFull, "SA queries": SAQueries, "SA OK": SAOK, "suspects": SASuspects,
	}
	want := map[string]Word{
		"unix address request": 0, "tcp path request": 9, "netlink invalid request": 21, "unix success": 24,
		"tcp no data": 43, "netlink unknown status": 71,
		"bytes in": 72, "endpoints full": 79, "SA queries": 80, "SA OK": 88, "suspects": 99,
	}
	if d := cmp.Diff(want, numbers); d != "" || schema != 1 {
		t.Errorf("schema %d numbers words differently:\n%s", schema, d)
	}
	sizes := map[string]uintptr{
		"header": unsafe.Sizeof(header{}), "words": unsafe.Sizeof(words{}), "endpoint": unsafe.Sizeof(endpoint{}),
		"hist": unsafe.Sizeof(hist{}), "slow": unsafe.Sizeof(slow{}), "kwords": unsafe.Sizeof(kwords{}),
		"flights": unsafe.Offsetof(header{}.Flights), "fast_on": unsafe.Offsetof(header{}.FastOn),
		"count": unsafe.Offsetof(endpoint{}.Count), "sum": unsafe.Offsetof(hist{}.Sum), "end": unsafe.Offsetof(slow{}.End),
	}
	wantSizes := map[string]uintptr{
		"header": 384, "words": 1024, "endpoint": 640, "hist": 1024, "slow": 128, "kwords": 128,
		"flights": 64, "fast_on": 28, "count": 128, "sum": 1016, "end": 120,
	}
	if d := cmp.Diff(wantSizes, sizes); d != "" {
		t.Errorf("layout:\n%s", d)
	}
	spec, err := loadAcm()
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]uint32{}
	for name, m := range spec.Maps {
		entries[name] = m.MaxEntries
	}
	if d := cmp.Diff(map[string]uint32{
		"acm_meta": 1, "acm_stats": statShards, "acm_ep": maxEndpoints, "acm_lat": latShards * latClasses,
		"acm_sa": latShards * latClasses, "acm_flight": maxFlights, "acm_kstat": maxEndpoints,
	}, entries); d != "" {
		t.Errorf("maps:\n%s", d)
	}
	for _, v := range []any{header{}, words{}, endpoint{}, hist{}, slow{}, kwords{}} {
		if typ := reflect.TypeOf(v); typ.Size()%64 != 0 {
			t.Errorf("%v is no multiple of a cache line", typ)
		}
	}
}

// Who still counts after Close writes into memory that is there, and a Maps that
// nobody has gives it back.
func TestLateWriter(t *testing.T) {
	bpftest.NeedMaps(t)
	m, err := Open(Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	sh, own, ep := m.Shard(), m.OwnShard(), m.Endpoint("mlx5_0", 1, 0xffff, 1)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m = nil
	for range 3 {
		runtime.GC()
		sh.Add(SASent, 1)
		own.Observe(LatHit, 1)
		ep.Add(0, CountResolve, 1)
	}
	if sh.Load(SASent) != 3 {
		t.Errorf("%d of 3", sh.Load(SASent))
	}
}
