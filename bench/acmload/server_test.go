// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeServer answers every request with what answer makes of it; nil answers
// nothing. It returns the socket's path.
func fakeServer(t testing.TB, answer func(req []byte) []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serveFake(c, answer)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return path
}

func serveFake(c net.Conn, answer func([]byte) []byte) {
	var b [maxMsg]byte
	for {
		if _, err := io.ReadFull(c, b[:hdrLen]); err != nil {
			return
		}
		if b[1] == opPerf { // one counter, in network byte order
			if _, err := c.Write([]byte{1, opPerf | opAck, 0, 1, 0, 0, 0, hdrLen + 8, 15: 0, 23: 7}); err != nil {
				return
			}
			continue
		}
		n := native.Uint16(b[6:])
		if _, err := io.ReadFull(c, b[hdrLen:n]); err != nil {
			return
		}
		if _, err := c.Write(answer(b[:n])); err != nil {
			return
		}
	}
}

func testTarget(t testing.TB) target {
	t.Helper()
	tgt, err := newTarget("ip:10.77.0.2", "fe80::10:3", "5", "ip:10.77.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return tgt
}

// right answers as the daemon does.
func right(tgt *target) func([]byte) []byte {
	return func(req []byte) []byte { return reply(tgt, native.Uint64(req[8:])) }
}

// faults are answers of which the 20th is wrong.
func faults(tgt *target) map[string]func([]byte) []byte {
	wrap := func(spoil func(b []byte) []byte) func([]byte) []byte {
		var n atomic.Int64
		return func(req []byte) []byte {
			b := reply(tgt, native.Uint64(req[8:]))
			if n.Add(1) == 20 {
				return spoil(b)
			}
			return b
		}
	}
	return map[string]func([]byte) []byte{
		"status":    wrap(func(b []byte) []byte { b[2] = 6; return b }),
		"tid":       wrap(func(b []byte) []byte { b[15] ^= 0x40; return b }),
		"old tid":   wrap(func(b []byte) []byte { native.PutUint64(b[8:], native.Uint64(b[8:])-1); return b }),
		"dlid":      wrap(func(b []byte) []byte { b[hdrLen+8+41]++; return b }),
		"length":    wrap(func(b []byte) []byte { native.PutUint16(b[6:], 3); return b }),
		"too short": wrap(func(b []byte) []byte { native.PutUint16(b[6:], hdrLen); return b[:hdrLen] }),
	}
}

func loadFor(path string, tgt target, edit func(*loadConfig)) result {
	c := &loadConfig{addr: path, conns: 2, pipeline: 1, raw: true, dur: 20 * time.Millisecond, timeout: 5 * time.Second, targets: []target{tgt}}
	edit(c)
	return load(c)
}

func TestLoadFindsWrongAnswers(t *testing.T) {
	tgt := testTarget(t)
	for how, edit := range map[string]func(*loadConfig){
		"single":     func(*loadConfig) {},
		"pipelined":  func(c *loadConfig) { c.pipeline = 8 },
		"batches":    func(c *loadConfig) { c.batch = 8 },
		"one thread": func(c *loadConfig) { c.epoll, c.greet = true, true },
		"greeted":    func(c *loadConfig) { c.greet = true },
	} {
		if r := loadFor(fakeServer(t, right(&tgt)), tgt, edit); r.Failed > 0 || r.OK == 0 || r.OwnCPU <= 0 {
			t.Errorf("%s, right answers: %+v", how, r)
		}
		for name, answer := range faults(&tgt) {
			if r := loadFor(fakeServer(t, answer), tgt, func(c *loadConfig) { edit(c); c.dur = time.Minute; c.conns = 1 }); r.Failed == 0 {
				t.Errorf("%s, wrong %s: passed", how, name)
			}
		}
	}
}

// Every connection asks for every destination once.
func TestEach(t *testing.T) {
	tgt := testTarget(t)
	for _, batch := range []int{0, 4} {
		r := loadFor(fakeServer(t, right(&tgt)), tgt, func(c *loadConfig) {
			c.each, c.batch, c.conns = true, batch, 3
			for range 9 {
				c.targets = append(c.targets, tgt)
			}
		})
		if r.OK != 30 || r.Failed != 0 {
			t.Errorf("batch %d: %+v", batch, r)
		}
	}
}

func TestCrowd(t *testing.T) {
	tgt := testTarget(t)
	r := crowd(fakeServer(t, right(&tgt)), 50, 0, &tgt, 5*time.Second)
	if r.Error != "" || r.Connected != 50 || r.Served != 50 || r.AtOnce != 50 {
		t.Errorf("%+v", r)
	}
	for name, answer := range faults(&tgt) {
		if r := crowd(fakeServer(t, answer), 50, 0, &tgt, 5*time.Second); r.Error == "" || r.AtOnce == 50 {
			t.Errorf("wrong %s: %+v", name, r)
		}
	}
}

func TestFailing(t *testing.T) {
	tgt := testTarget(t)
	status := func(s byte) func([]byte) []byte {
		return func(req []byte) []byte {
			b := append([]byte(nil), req[:hdrLen]...)
			b[2] = s
			native.PutUint16(b[6:], hdrLen)
			return b
		}
	}
	f := failing{t: &tgt, status: 6, limit: 5 * time.Second, begin: time.Now(), every: 10 * time.Millisecond, dur: 35 * time.Millisecond}
	if told, err := f.run(fakeServer(t, status(6)), 1); err != nil || told < 1 || told > 4 {
		t.Errorf("told %d times, %v", told, err)
	}
	f.begin = time.Now()
	if _, err := f.run(fakeServer(t, status(0)), 1); err == nil || !strings.Contains(err.Error(), "status 0") {
		t.Errorf("success instead of a failure: %v", err)
	}
}

func TestBusy(t *testing.T) {
	m := startBusy()
	if m.total == 0 {
		t.Fatal("/proc/stat cannot be read")
	}
	// The counters are the kernel's; the arithmetic is ours.
	m = busyMeter{total: m.total - 1000, idle: m.idle}
	if s := m.share(); s <= 0 || s > 1 {
		t.Errorf("share %v", s)
	}
}

func BenchmarkRequest(b *testing.B) {
	tgt := testTarget(b)
	var buf [maxMsg]byte
	for b.Loop() {
		tgt.request(buf[:], 1, false, 0)
	}
}

func BenchmarkCheck(b *testing.B) {
	tgt := testTarget(b)
	msg := reply(&tgt, 1)
	for b.Loop() {
		if err := tgt.check(msg, 1); err != nil {
			b.Fatal(err)
		}
	}
}
