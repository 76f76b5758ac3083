// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"hash/crc32"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/mad"
	"acmd/mad/transport"
	"acmd/mad/verbs"
	"acmd/resolver"
	"acmd/resolver/acmp"
	"acmd/resolver/hostnet"
	"acmd/resolver/neigh"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed is a source that always says the same.
type fixed struct{ s *Snapshot }

func (f fixed) Snapshot() *Snapshot { return f.s }

// number fills every field of a structure of plain numbers with a value of its
// own: base and four digits that come from the field's name, so that a page with
// two of them exchanged differs, and a new field changes no other's value.
func number(base int, structs ...any) {
	for _, s := range structs {
		v := reflect.ValueOf(s).Elem()
		for i := range v.NumField() {
			n := base*10000 + int(crc32.ChecksumIEEE([]byte(v.Type().Field(i).Name))%10000)
			switch f := v.Field(i); f.Kind() {
			case reflect.Uint64:
				f.SetUint(uint64(n))
			case reflect.Int, reflect.Int64:
				f.SetInt(int64(n))
			}
		}
	}
}

// synthetic is a host with two ports and a busy day behind it.
func synthetic() *Snapshot {
	s := &Snapshot{
		Version: "1.2.3", GoVersion: "go1.26", Started: time.Unix(1_700_000_000, 0),
		Endpoints: []Endpoint{
			{"mlx5_0", 1, "0xffff", "ibacmp", "0x0002c903000e0b72", resolver.Counters{11, 12, 13, 14, 15, 16, 17}},
			{"mlx5_0", 1, "0x8012", "ibacmp", "0x0002c903000e0b72", resolver.Counters{21, 22, 23, 24, 25, 26, 27}},
			{"mlx5_1", 2, "0xffff", "ibacmp", "0x0002c903000e0b74", resolver.Counters{31, 32, 33, 34, 35, 36, 1 << 40}},
		},
		Place:    bpf.Pinned,
		Trace:    true,
		Programs: []bpf.ProgramStats{{Name: "sa_send", Runs: 1001, RunTime: 1500 * time.Millisecond}},
		Ports:    []Port{{Device: "mlx5_0", Port: 1}, {Device: "mlx5_1", Port: 2}},
		Groups: []acmp.GroupStatus{
			{Device: "mlx5_0", Port: 1, PKey: mad.DefaultPKey, Joined: true},
			{Device: "mlx5_0", Port: 1, PKey: mad.DefaultPKey},
			{Device: "mlx5_1", Port: 2, PKey: 0x8012},
		},
	}
	s.Counts.Totals = bpf.Counters{1, 2, 3, 4, 5, 6, 7}
	s.Counts.Boots = 8
	s.Counts.SlowTotal = 9
	words(1100, s.Counts.Words[:])
	words(1300, s.Counts.Kernel[:])
	words(1400, s.Counts.FabricWords[:])
	for i := range s.Counts.Latency {
		spread(&s.Counts.Latency[i], i+3)
	}
	for i := range s.Counts.Fabric {
		spread(&s.Counts.Fabric[i], i+13)
	}
	s.Counts.Latency[bpf.LatMiss] = bpf.Histogram{}
	s.FastPath.State, s.FastPath.Reason = "failed", "the self-test had no answer"
	s.Netlink, s.Neigh, s.Host = new(Netlink), new(neigh.Stats), &hostnet.Stats{Watching: true}
	s.Ports[0].Queues = new(verbs.Stats)
	s.Events = []transport.EventSource{
		{Device: "mlx5_0", Source: "uverbs", Events: 121001, Lost: 121002},
		{Device: "mlx5_1", Source: transport.SourcePoll, Reason: "no such request"},
	}
	number(7, &s.FastPath)
	number(8, s.Netlink)
	number(9, s.Neigh)
	number(10, s.Host)
	number(11, s.Ports[0].Queues)
	s.Netlink.Unanswered = []Count{{[]string{"late"}, 831}}
	s.Netlink.Ignored = []Count{{[]string{"foreign"}, 841}}
	number(1, &s.Clients)
	s.Clients.Rejected = []Count{{[]string{"clients"}, 121}, {[]string{"user"}, 122}}
	s.Clients.Closed = []Count{{[]string{"client"}, 131}}
	s.Clients.Faults = []Count{{[]string{"version"}, 141}}
	number(2, &s.Engine)
	number(3, &s.Cache)
	number(4, &s.Ports[0].SA)
	number(5, &s.Ports[1].SA)
	number(6, &s.ACM)
	s.ACM.Refused = map[string]uint64{"stray": 621, "rate": 622}
	return s
}

// moving is a source whose counters grow with each snapshot, each at its own pace.
type moving struct{ n atomic.Uint64 }

func (m *moving) Snapshot() *Snapshot {
	s := synthetic()
	grow(reflect.ValueOf(s).Elem(), m.n.Add(1))
	return s
}

// grow multiplies all that counts, which is all that is unsigned and of 64 bits.
func grow(v reflect.Value, n uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				grow(v.Field(i), n)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			grow(v.Index(i), n)
		}
	case reflect.Uint64:
		v.SetUint(v.Uint() * n)
	}
}

// words fills counters with a value of its own each, counting from first.
func words(first uint64, w []uint64) {
	for i := range w {
		w[i] = first + uint64(i)
	}
}

// spread puts something into every n-th bucket.
func spread(h *bpf.Histogram, n int) {
	h.Sum = uint64(n) * 500_000_000
	for i := 0; i < len(h.Buckets); i += n {
		h.Buckets[i] = uint64(i + 1)
	}
}
