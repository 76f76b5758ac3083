// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"acmd/bpf"
	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/madtest"
	madsa "acmd/mad/sa"
	"acmd/resolver/acmp"
	"acmd/resolver/acmsock"
	saclient "acmd/resolver/sa"
)

// field case 76: a port that opens again and again does not fill the log.
func TestOpeningsAreBounded(t *testing.T) {
	f, err := fabric.New(fabric.Config{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	devs, err := f.Devices()
	if err != nil {
		t.Fatal(err)
	}
	var log madtest.Output
	table := newPortTable(f, saclient.Config{}, bpf.NewMemory(), log.Logger())
	table.acm = acmp.New(acmp.Config{}, nil)
	for range 20 {
		s, err := table.open(fabric.DeviceName, devs[0].Ports[0])
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	if n := log.Count("port is open"); n != openLines {
		t.Errorf("told %d times, want %d:\n%s", n, openLines, log.String())
	}
	// Later it is news again.
	o := table.told[portID{fabric.DeviceName, 1}]
	o.since = o.since.Add(-openLinesEvery)
	table.told[portID{fabric.DeviceName, 1}] = o
	if level := table.openLevel(portID{fabric.DeviceName, 1}); level != slog.LevelInfo {
		t.Errorf("much later: %v", level)
	}
}

// field case 71: while the SA is silent and somebody waits for it, the page comes
// from memory, with what is outstanding; nobody is held up by those who read it.
func TestScrapeWithSilentSA(t *testing.T) {
	d, f := startEmbedded(t, "127.0.0.1:0", "request_timeout 60000", "retries 30")
	dial := acmsock.Dialer{RunDir: d.opts.RunDir}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := dial.Dial(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	silence := f.AddRule(fabric.Rule{Class: mad.ClassSA, Attr: madsa.AttrPathRecord, Do: fabric.Drop})
	asked := make(chan error, 1)
	go func() {
		var rec madsa.PathRecord
		rec.SetDGID(f.GID(5, 1))
		_, err := c.ResolvePath(ctx, rec, false)
		asked <- err
	}()
	for end := time.Now().Add(time.Minute); silence.Hits() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the SA is not asked")
		}
	}
	// The lookup goes on for half a minute, so that the pages come meanwhile.
	for range 10 {
		if n := value(t, scrape(t, d), "acmd_flight_waiters"); n != 1 {
			t.Errorf("%d clients wait", n)
		}
	}
	select {
	case err := <-asked:
		t.Fatalf("the SA was to be silent: %v", err)
	default:
	}
	silence.Remove()
	if err := <-asked; err != nil {
		t.Error(err)
	}
}
