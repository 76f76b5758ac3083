// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// prober is the daemon under test with a destination that it can resolve.
type prober struct {
	addr string
	pid  int
	t    target // a resolvable destination with source
	max  int

	good     []byte // the right request for it
	src, dst endpoint

	fresh string // a resolvable destination that is not cached yet
}

// probe is one input; run says in words what came of it.
type probe struct {
	name  string
	risky bool // may stall or kill the daemon
	run   func(*prober) string
}

// alive is empty, or says that the daemon is dead.
func alive(pid int) string {
	if pid == 0 {
		return ""
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		if i := strings.LastIndexByte(string(b), ')'); i >= 0 && len(b) > i+2 && b[i+2] != 'Z' {
			return ""
		}
	}
	return "; DAEMON DIED"
}

// outcome reads one reply (or its absence).
func outcome(c net.Conn, wait time.Duration) string {
	var b [64 << 10]byte
	c.SetReadDeadline(time.Now().Add(wait))
	n, err := c.Read(b[:])
	switch {
	case n >= hdrLen:
		length := native.Uint16(b[6:])
		if b[1]&0x0f != opResolv {
			length = binary.BigEndian.Uint16(b[6:])
		}
		s := fmt.Sprintf("reply opcode %#x status %d length %d (%d bytes read)", b[1], b[2], length, n)
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(b[:1]); errors.Is(err, io.EOF) {
			s += ", then closed"
		}
		return s
	case n > 0:
		return fmt.Sprintf("%d stray bytes", n)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "no reply, connection stays open"
	case errors.Is(err, io.EOF):
		return "closed"
	default:
		return "closed: " + err.Error()
	}
}

// send writes the chunks with a pause between them and reports the outcome.
func send(chunks ...[]byte) func(*prober) string {
	return func(p *prober) string {
		c, err := dial(p.addr)
		if err != nil {
			return "connect: " + err.Error()
		}
		defer c.Close()
		for i, b := range chunks {
			if i > 0 {
				time.Sleep(50 * time.Millisecond)
			}
			if _, err := c.Write(b); err != nil {
				return fmt.Sprintf("write %d: %v", i+1, err)
			}
		}
		return outcome(c, 700*time.Millisecond)
	}
}

// msg builds a resolve message of the given entries.
func msg(op byte, eps ...endpoint) []byte {
	b := make([]byte, hdrLen+epLen*len(eps))
	for i := range eps {
		eps[i].put(b[hdrLen+i*epLen:])
	}
	putHeader(b, op, uint16(len(b)), 7)
	return b
}

// edit changes a copy.
func edit(b []byte, f func([]byte)) []byte {
	b = slices.Clone(b)
	f(b)
	return b
}

// mustEP is for addresses that are constants.
func mustEP(s string, dst bool) endpoint {
	e, err := parseEndpoint(s, dst)
	if err != nil {
		panic(err)
	}
	return e
}

// latency measures n resolves on a fresh connection.
func latency(p *prober, n int) string {
	cfg := loadConfig{addr: p.addr, conns: 1, pipeline: 1, once: true, timeout: 2 * time.Second, raw: true}
	for range n {
		cfg.targets = append(cfg.targets, p.t)
	}
	r := load(&cfg)
	if r.Failed > 0 {
		return fmt.Sprintf("other clients: %d of %d failed, %s", r.Failed, n, r.FirstError)
	}
	return fmt.Sprintf("other clients: p50 %.0f us, max %.0f us", r.P50us, r.MaxUs)
}

func cmdProbe(args []string) error {
	fs := flag.NewFlagSet("probe", flag.ExitOnError)
	var (
		addr  = fs.String("s", "/run/ibacm.sock", "service: a socket path or host:port")
		pid   = fs.Int("pid", 0, "server process")
		src   = fs.String("src", "", "source, ip: or name:")
		dst   = fs.String("dst", "", "a resolvable destination: kind:value,dgid,dlid")
		match = fs.String("run", "", "only probes that match this expression")
		risky = fs.Bool("risky", false, "include probes that may stall or kill the daemon")
		fresh = fs.String("fresh", "", "a resolvable, not yet cached destination, kind:value")
		limit = fs.Int("max", 1100, "connections that the many-clients probe opens")
	)
	fs.Parse(args)
	f := strings.Split(*dst, ",")
	if len(f) != 3 || *src == "" {
		return fmt.Errorf("need -src and -dst kind:value,dgid,dlid")
	}
	t, err := newTarget(f[0], f[1], f[2], *src)
	if err != nil {
		return err
	}
	re, err := regexp.Compile(*match)
	if err != nil {
		return err
	}
	p := &prober{addr: *addr, pid: *pid, t: t, max: *limit, fresh: *fresh, src: *t.src, dst: t.ep}
	p.good = make([]byte, maxMsg)
	p.good = p.good[:t.request(p.good, 7, false, 0)]
	for _, pr := range slices.Concat(framingProbes(p), entryProbes(p), queryProbes(), behaviourProbes()) {
		if !re.MatchString(pr.name) || pr.risky && !*risky {
			continue
		}
		fmt.Printf("%-62s %s", pr.name, pr.run(p))
		fmt.Println(alive(*pid))
		if alive(*pid) != "" {
			return fmt.Errorf("the daemon died")
		}
	}
	return nil
}
