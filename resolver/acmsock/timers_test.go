// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"log/slog"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// The list of deadlines against a plain model.
func TestTimerList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const timeout = 100
		list := timerList{kind: timerBlocked, timeout: timeout}
		conns := make([]*conn, 8)
		for i := range conns {
			conns[i] = &conn{handoff: handoff{fd: int32(i)}}
		}
		type entry struct {
			c   *conn
			end int64
		}
		var model []entry
		find := func(c *conn) int { return slices.IndexFunc(model, func(e entry) bool { return e.c == c }) }
		now := int64(1)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				c := rapid.SampledFrom(conns).Draw(t, "conn")
				list.set(c, now)
				if find(c) < 0 {
					model = append(model, entry{c, now + timeout})
				}
			},
			"drop": func(t *rapid.T) {
				c := rapid.SampledFrom(conns).Draw(t, "conn")
				list.drop(c)
				if i := find(c); i >= 0 {
					model = slices.Delete(model, i, i+1)
				}
			},
			"time": func(t *rapid.T) { now += rapid.Int64Range(0, 60).Draw(t, "step") },
			"": func(t *rapid.T) {
				var due *conn
				next := int64(0)
				if len(model) > 0 {
					next = model[0].end
					if model[0].end <= now {
						due = model[0].c
					}
				}
				if got := list.due(now); got != due {
					t.Fatalf("due %v, want %v", got, due)
				}
				if got := list.next(0); got != next {
					t.Fatalf("next %d, want %d", got, next)
				}
				i := 0
				for c := list.first; c != nil; c = c.timers[timerBlocked].next {
					if i >= len(model) || model[i].c != c {
						t.Fatalf("entry %d is connection %d", i, c.fd)
					}
					i++
				}
				if i != len(model) {
					t.Fatalf("%d entries, want %d", i, len(model))
				}
			},
		})
	})
}

func TestTimerNextTakesTheEarlier(t *testing.T) {
	list := timerList{timeout: time.Duration(10)}
	if got := list.next(5); got != 5 {
		t.Errorf("empty list: %d", got)
	}
	list.set(&conn{}, 7)
	for _, c := range []struct{ in, want int64 }{{0, 17}, {5, 5}, {20, 17}} {
		if got := list.next(c.in); got != c.want {
			t.Errorf("next(%d) = %d, want %d", c.in, got, c.want)
		}
	}
}

// The warning has both numbers.
func TestRaiseNoFile(t *testing.T) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		clients int
		warns   bool
	}{{1, false}, {int(min(lim.Max, 1<<30)), true}} {
		var log bytes.Buffer
		got, err := RaiseNoFile(slog.New(slog.NewTextHandler(&log, nil)), c.clients)
		if err != nil || got != lim.Max {
			t.Errorf("limit %d, %v; want %d", got, err, lim.Max)
		}
		if warned := bytes.Contains(log.Bytes(), []byte("limit=")) && bytes.Contains(log.Bytes(), []byte("max_clients=")); warned != c.warns {
			t.Errorf("%d clients: log %q", c.clients, log.String())
		}
	}
}
