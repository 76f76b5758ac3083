// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// behaviourProbes watch the daemon over time, or over several connections.
func behaviourProbes() []probe {
	return []probe{
		{"second request after an error reply", false, afterError},
		{"client shuts down its sending side after a request", false, halfClose},
		{"idle half-open clients (8 connected, 1 byte short of a header each)", false, idleClients},
		{"uncached destination that never answers: same connection", false, deadDestination},
		{"dead destination, then a cached one, same connection", false, overtaking},
		{"uncached destination, client leaves before the answer", false, leavesEarly},
		{"client that never reads (stalls its socket for 3 s)", true, neverReads},
		{"client sends a request and closes at once, 200 times", true, closesAtOnce},
		{"dead destination ahead of a live uncached one (-fresh)", false, headOfLine},
		{"many clients", true, manyClients},
		{"8 entries, no source, destination set", true, fullWithoutSource},
	}
}

// afterError: an error keeps the connection usable.
func afterError(p *prober) string {
	c, err := dial(p.addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.Write(msg(opResolv, p.src))
	first := outcome(c, time.Second)
	c.Write(p.good)
	return first + " | " + outcome(c, time.Second)
}

// halfClose: the reply still comes after the client has shut its sending side.
func halfClose(p *prober) string {
	c, err := dial(p.addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.Write(p.good)
	c.(interface{ CloseWrite() error }).CloseWrite()
	return outcome(c, time.Second)
}

// idleClients: clients that hold back the last byte of a header cost others nothing.
func idleClients(p *prober) string {
	for range 8 {
		c, err := dial(p.addr)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		c.Write(p.good[:15])
	}
	time.Sleep(50 * time.Millisecond)
	return latency(p, 200)
}

// deadDestination: how long a destination that never answers takes, and what others feel.
func deadDestination(p *prober) string {
	c, err := dial(p.addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	begin := time.Now()
	c.Write(msg(opResolv, p.src, mustEP("ip:203.0.113.78", true)))
	r := latency(p, 200)
	return outcome(c, 20*time.Second) + fmt.Sprintf(" after %.2f s; meanwhile %s", time.Since(begin).Seconds(), r)
}

// overtaking: whether a cached answer waits for one that never comes.
func overtaking(p *prober) string {
	c, err := dial(p.addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.Write(edit(msg(opResolv, p.src, mustEP("ip:203.0.113.80", true)), func(b []byte) { b[8] = 1 }))
	time.Sleep(50 * time.Millisecond)
	begin := time.Now()
	c.Write(edit(p.good, func(b []byte) { b[8] = 2 }))
	var b [maxMsg]byte
	var s []string
	for range 2 {
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		// By its length: both replies may leave in one write.
		if _, err := io.ReadFull(c, b[:hdrLen]); err != nil {
			return err.Error()
		}
		n := int(binary.NativeEndian.Uint16(b[6:]))
		if n < hdrLen || n > maxMsg {
			return fmt.Sprintf("length field %d", n)
		}
		if _, err := io.ReadFull(c, b[hdrLen:n]); err != nil {
			return err.Error()
		}
		s = append(s, fmt.Sprintf("request %d answered with status %d after %.3f s", b[8], b[2], time.Since(begin).Seconds()))
	}
	return strings.Join(s, ", ")
}

// leavesEarly: an answer for a client that is gone.
func leavesEarly(p *prober) string {
	c, err := dial(p.addr)
	if err != nil {
		return err.Error()
	}
	c.Write(msg(opResolv, p.src, mustEP("ip:203.0.113.79", true)))
	time.Sleep(50 * time.Millisecond)
	c.Close()
	time.Sleep(50 * time.Millisecond)
	return latency(p, 200)
}

// neverReads: a client that sends and never reads must stall only itself.
func neverReads(p *prober) string {
	c, err := dial(p.addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if u, ok := c.(*net.UnixConn); ok {
		u.SetWriteBuffer(4 << 20)
	}
	b := make([]byte, maxMsg)
	copy(b, p.good)
	native.PutUint16(b[6:], maxMsg)
	var n atomic.Int64
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		c.SetWriteDeadline(time.Now().Add(3 * time.Second))
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
			n.Add(1)
		}
	}()
	time.Sleep(1500 * time.Millisecond)
	r := latency(p, 20)
	sent := n.Load()
	wg.Wait()
	c.Close()
	time.Sleep(100 * time.Millisecond)
	return fmt.Sprintf("%d requests written; %s; once it is gone: %s", sent, r, latency(p, 20))
}

// closesAtOnce: replies to closed connections must not kill the daemon.
func closesAtOnce(p *prober) string {
	for i := range 200 {
		c, err := dial(p.addr)
		if err != nil {
			return fmt.Sprintf("connection %d: %v", i+1, err)
		}
		c.Write(p.good)
		c.Close()
		if alive(p.pid) != "" {
			return fmt.Sprintf("after %d", i+1)
		}
	}
	time.Sleep(100 * time.Millisecond)
	return latency(p, 20)
}

// headOfLine: a dead destination must not delay another that is asked later.
func headOfLine(p *prober) string {
	if p.fresh == "" {
		return "skipped"
	}
	dead, err := dial(p.addr)
	if err != nil {
		return err.Error()
	}
	defer dead.Close()
	live, err := dial(p.addr)
	if err != nil {
		return err.Error()
	}
	defer live.Close()
	dead.Write(msg(opResolv, p.src, mustEP("ip:203.0.113.90", true)))
	time.Sleep(20 * time.Millisecond)
	begin := time.Now()
	live.Write(msg(opResolv, p.src, mustEP(p.fresh, true)))
	return outcome(live, 60*time.Second) + fmt.Sprintf(" after %.3f s", time.Since(begin).Seconds())
}

// fullWithoutSource: the largest request leaves no room for a source entry.
func fullWithoutSource(p *prober) string {
	var out []string
	for range 20 {
		eps := make([]endpoint, 8)
		eps[0] = p.dst
		out = append(out, send(msg(opResolv, eps...))(p))
		if alive(p.pid) != "" {
			break
		}
	}
	return fmt.Sprintf("%d sent, last: %s", len(out), out[len(out)-1])
}

// manyClients opens connections until one is refused or max is reached, then
// checks each one and the time a new client waits.
func manyClients(p *prober) string {
	var lim syscall.Rlimit
	syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim)
	lim.Cur = lim.Max
	syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	var buf [maxMsg]byte
	n := p.t.request(buf[:], 9, false, 0)
	for i := range p.max {
		c, err := dial(p.addr)
		if err != nil {
			return fmt.Sprintf("connection %d: %v%s", i+1, err, alive(p.pid))
		}
		conns = append(conns, c)
		if _, err = c.Write(buf[:n]); err == nil {
			c.SetReadDeadline(time.Now().Add(2 * time.Second))
			_, err = c.Read(make([]byte, maxMsg))
		}
		if err != nil {
			cpu0, _ := cpuTime(p.pid)
			time.Sleep(time.Second)
			cpu1, _ := cpuTime(p.pid)
			s := fmt.Sprintf("client %d got no answer: %v; daemon CPU in the next second %.2f s%s", i+1, err, (cpu1 - cpu0).Seconds(), alive(p.pid))
			if len(conns) > 1 {
				c := conns[0]
				c.Write(buf[:n])
				s += "; client 1: " + outcome(c, time.Second)
			}
			return s
		}
	}
	return fmt.Sprintf("%d clients served", len(conns)) + alive(p.pid)
}
