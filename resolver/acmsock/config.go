// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"errors"
	"fmt"
	"time"

	"acmd/bpf"
)

// Mode is where clients find the server (server_mode).
type Mode uint8

const (
	ModeUnix Mode = iota // unix socket in the run directory
	ModeLoop             // TCP on 127.0.0.1
	ModeOpen             // TCP on every IPv4 address
)

func (m Mode) String() string {
	switch m {
	case ModeUnix:
		return "unix"
	case ModeLoop:
		return "loop"
	case ModeOpen:
		return "open"
	}
	return "unknown"
}

// Defaults of [Config]; they apply where a field is zero.
const (
	DefaultMaxClients     = 16384
	DefaultPartialTimeout = 10 * time.Second
	DefaultWriteTimeout   = 30 * time.Second
	maxThreads            = 64
)

// Config says where and how the server serves. The caller holds the daemon's
// lock file: rendezvous files that exist are taken for stale.
type Config struct {
	RunDir string // of the rendezvous files; empty: [DefaultRunDir]
	Mode   Mode
	Port   uint16 // of the TCP modes; 0 lets the kernel choose
	// NoLinks leaves the names out that librdmacm looks for
	// (acme_plus_kernel_only).
	NoLinks bool
	// Listeners are listening stream sockets that were passed by the service
	// manager, see [Passed]. With any, Mode and Port are not used, and no socket
	// file is made or removed. The server takes them over.
	Listeners []int

	// Counters is where the server counts, the engine's: the totals that it tells
	// are those of both. nil: memory of its own.
	Counters *bpf.Maps

	// Fast asks for a TCP listener on 127.0.0.1 that the kernel can answer clients
	// of, on FastPort (0 lets the kernel choose), where there is no other TCP
	// listener. See [Server.FastPort].
	Fast     bool
	FastPort uint16
	// FastWait lets clients that the kernel answers wait for misses. They can
	// lose their reply to a signal there; otherwise they are told "no data" at
	// once, and the path is looked up for the next time.
	FastWait bool

	Threads    int // event loops (server_threads); 0: 1
	MaxClients int // connections at a time; 0: DefaultMaxClients
	MaxPerUID  int // connections of one user on unix sockets; 0: no bound
	// MaxPending bounds the questions that wait in the engine, also those of
	// clients that have left. 0: four times MaxClients.
	MaxPending int
	// PartialTimeout is how long a client may take to complete a message that
	// it began, WriteTimeout how long to take in replies that did not fit its
	// socket buffer. A client that does neither is never closed.
	PartialTimeout time.Duration
	WriteTimeout   time.Duration
}

func (c *Config) check() error {
	if c.RunDir == "" {
		c.RunDir = DefaultRunDir
	}
	if c.Counters == nil {
		c.Counters = bpf.NewMemory()
	}
	if c.Threads == 0 {
		c.Threads = 1
	}
	if c.MaxClients == 0 {
		c.MaxClients = DefaultMaxClients
	}
	if c.MaxPending == 0 {
		c.MaxPending = 4 * c.MaxClients
	}
	if c.PartialTimeout == 0 {
		c.PartialTimeout = DefaultPartialTimeout
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = DefaultWriteTimeout
	}
	switch {
	case c.Mode > ModeOpen:
		return fmt.Errorf("server mode %d is unknown", c.Mode)
	case c.Threads < 1 || c.Threads > maxThreads:
		return fmt.Errorf("server threads: %d is not in 1 to %d", c.Threads, maxThreads)
	case c.MaxClients < 1 || c.MaxPending < 1 || c.MaxPerUID < 0:
		return errors.New("client limits must be positive")
	case c.PartialTimeout < 0 || c.WriteTimeout < 0:
		return errors.New("client timeouts must be positive")
	}
	return nil
}
