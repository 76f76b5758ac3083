// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A client that asks for dead names for ten minutes (each waits two seconds)
// leaves a handful of lines, which say the step and how many were not said, and a
// bounded list (field case 67).
func TestFailuresAreCountedNotRepeated(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		before := len(l.log.lines())
		const asked = 200
		for i := range asked {
			l.want(byIP("10.0.0.1", fmt.Sprintf("10.9.%d.%d", i/250, i%250+1)), StatusTimedOut)
			time.Sleep(time.Second)
		}
		lines := l.log.lines()[before:]
		if len(lines) < 2 || len(lines) > 20 {
			t.Fatalf("%d lines for %d failures", len(lines), asked)
		}
		said := 0
		for _, line := range lines {
			if !strings.Contains(line, "address step: ") {
				t.Errorf("the step is not named: %s", line)
			}
			var missed int
			if i := strings.Index(line, "not_said="); i < 0 {
				t.Errorf("no count of what was not said: %s", line)
			} else if _, err := fmt.Sscanf(line[i:], "not_said=%d", &missed); err != nil {
				t.Error(err)
			}
			said += 1 + missed
		}
		if said > asked || said < asked-60 {
			t.Errorf("lines account for %d of %d failures", said, asked)
		}
		// A failure is kept when its lookup ends, which is after its askers gave up.
		time.Sleep(DefaultAddressDeadline)
		list := l.e.Failures()
		if len(list) != failureRing {
			t.Fatalf("%d failures kept, want %d", len(list), failureRing)
		}
		if f := list[0]; f.Dst != "10.9.0.200" || f.Step != "address step" || f.Status != StatusTimedOut || f.Endpoint == "" {
			t.Errorf("newest failure %+v", f)
		}
		if list[0].Time.Before(list[1].Time) {
			t.Error("not the newest first")
		}
	})
}

// A new kind of failure is said though many others were, long ago; what those had not
// said yet is counted with it.
func TestNewKindsAreSaid(t *testing.T) {
	var l failureLog
	l.init(nil)
	begin := time.Now()
	count := func(slot int, after time.Duration) (bool, int) {
		return l.count(failureKind{slot: uint16(slot)}, &Failure{Time: begin.Add(after)})
	}
	for i := range failureKinds {
		if say, _ := count(i, 0); !say {
			t.Fatalf("kind %d was not said", i)
		}
	}
	count(0, time.Second) // a second one, not said
	if say, _ := count(failureKinds, time.Second); say {
		t.Error("more kinds said at once than there may be")
	}
	if say, missed := count(failureKinds, failureSilence); !say || missed != 1 {
		t.Errorf("a minute later: said %v, %d before it not", say, missed)
	}
	if len(l.kinds) > failureKinds {
		t.Errorf("%d kinds kept", len(l.kinds))
	}
}

func TestAddrString(t *testing.T) {
	for _, tc := range []struct {
		a    Addr
		want string
	}{
		{NameAddr("Node1"), "node1"},
		{NameAddr("a\nb\x7f\xff"), "a.b.."},
		{ip("10.0.0.1"), "10.0.0.1"},
		{ip("fd00::1"), "fd00::1"},
		{GIDAddr(gidOf(1)), gidOf(1).String()},
		{LIDAddr(0xbfff), "49151"}, // field case 44
		{Addr{}, "none"},
	} {
		if got := tc.a.String(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
