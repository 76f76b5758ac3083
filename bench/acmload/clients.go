// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"
)

// crowdResult is what "clients" measured; times in seconds.
type crowdResult struct {
	Asked       int     `json:"asked"`
	Connected   int     `json:"connected"`
	ConnectTime float64 `json:"connect_s"` // all connected, and each served once
	Served      int     `json:"served"`
	AtOnce      int     `json:"at_once"` // served again, all requests written before any answer is read
	AtOnceTime  float64 `json:"at_once_s"`
	RSSKB       int     `json:"server_rss_kb"`
	CPU         float64 `json:"server_cpu_s"`
	Error       string  `json:"error,omitempty"` // the first
}

func (r *crowdResult) fail(err error) {
	if r.Error == "" {
		r.Error = err.Error()
	}
}

// cmdClients opens many connections one after the other, asks on each as soon as
// it is open, and asks on all of them again once all are open.
func cmdClients(args []string) error {
	fs := flag.NewFlagSet("clients", flag.ExitOnError)
	var (
		addr    = fs.String("s", "/run/ibacm.sock", "service: a socket path or host:port")
		n       = fs.Int("n", 10000, "connections")
		src     = fs.String("src", "", "source, kind:value")
		dst     = fs.String("dst", "", "destination: kind:value,dgid,dlid")
		pid     = fs.Int("pid", 0, "server process to account")
		timeout = fs.Duration("timeout", 10*time.Second, "give up on a connection or a response")
	)
	fs.Parse(args)
	f := strings.Split(*dst, ",")
	if len(f) != 3 || *n < 1 {
		return errors.New("-dst wants kind:value,dgid,dlid, and -n 1 at least")
	}
	t, err := newTarget(f[0], f[1], f[2], *src)
	if err != nil {
		return err
	}
	r := crowd(*addr, *n, *pid, &t, *timeout)
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	fmt.Println(string(b))
	if r.AtOnce != *n {
		return fmt.Errorf("%d of %d clients were served: %s", r.AtOnce, *n, r.Error)
	}
	return nil
}

func crowd(addr string, n, pid int, t *target, timeout time.Duration) crowdResult {
	r := crowdResult{Asked: n}
	cpu0, _ := cpuTime(pid)
	var (
		conns []rawConn
		out   [maxMsg]byte
	)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	begin := time.Now()
	for i := range n {
		c, err := dialRaw(addr, timeout)
		if err != nil {
			r.fail(fmt.Errorf("client %d: %w", i+1, err))
			break
		}
		conns = append(conns, c)
		if _, err = c.Write(out[:t.request(out[:], uint64(i), false, 0)]); err == nil {
			err = expect(c, t, uint64(i))
		}
		if err != nil {
			r.fail(fmt.Errorf("client %d: %w", i+1, err))
			break
		}
		r.Served++
	}
	r.Connected, r.ConnectTime = len(conns), time.Since(begin).Seconds()
	begin = time.Now()
	for i, c := range conns {
		if _, err := c.Write(out[:t.request(out[:], uint64(n+i), false, 0)]); err != nil {
			r.fail(fmt.Errorf("client %d again: %w", i+1, err))
		}
	}
	for i, c := range conns {
		if r.Error != "" {
			break
		}
		if err := expect(c, t, uint64(n+i)); err != nil {
			r.fail(fmt.Errorf("client %d again: %w", i+1, err))
			break
		}
		r.AtOnce++
	}
	r.AtOnceTime = time.Since(begin).Seconds()
	r.RSSKB, _ = rssKB(pid)
	if cpu1, err := cpuTime(pid); err == nil {
		r.CPU = (cpu1 - cpu0).Seconds()
	}
	return r
}

// expect reads one answer and checks it.
func expect(c stream, t *target, tid uint64) error {
	var in reader
	msg, err := in.message(c)
	if err != nil {
		return err
	}
	return t.check(msg, tid)
}
