// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"log/slog"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/mad"
	"acmd/resolver"
)

// cached is an engine that has every path.
type cached struct{ resolver.Resolver }

func (cached) Now() int64 { return 0 }
func (cached) Lookup(q *resolver.Query, _ int64, a *resolver.Answer) bool {
	a.Status, a.Path = resolver.StatusSuccess, q.Path
	return true
}

// counted is a socket that only counts what is sent.
type counted struct {
	Conn
	sent int
	dgid mad.GID
}

func (c *counted) Send(b []byte) error { c.sent++; c.dgid = mad.GID(b[36:52]); return nil }

// hit is a door outside of its goroutine, and a request for it.
func hit(t testing.TB) (*Door, *counted, []byte) {
	c := &counted{}
	d := &Door{cfg: Config{Engine: cached{}, Wait: DefaultWait, Counters: bpf.NewShard()}, conn: c, log: slog.New(slog.DiscardHandler),
		table: newTable(1), said: map[string]bool{}, out: make([]byte, 0, AnswerLen)}
	return d, c, unhex(t, goldenAFIB)
}

func TestHitAllocates(t *testing.T) {
	d, c, b := hit(t)
	if n := testing.AllocsPerRun(1000, func() { d.datagram(b, time.Now()) }); n > 0 {
		t.Errorf("%v allocations for a hit", n)
	}
	if c.sent != 1001 { // and one to warm up
		t.Errorf("%d answers", c.sent)
	}
}

// BenchmarkHit is a cached request without its two system calls.
func BenchmarkHit(b *testing.B) {
	d, c, m := hit(b)
	want := mad.MakeGID(0xfe80<<48, 0x0200000000010201)
	b.ReportAllocs()
	for b.Loop() {
		d.datagram(m, time.Now())
		if c.dgid != want {
			b.Fatalf("answer for %v", c.dgid)
		}
	}
	if c.sent == 0 {
		b.Fatal("nothing was answered")
	}
}
