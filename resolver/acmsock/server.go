// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"acmd/resolver"
)

// Server answers local clients. Make one with [New], then [Server.Start] it and
// end it with [Server.Drain] or [Server.Close]. Methods are safe for concurrent
// use.
type Server struct {
	cfg  Config
	r    resolver.Resolver
	log  *slog.Logger
	rdv  *rendezvous
	addr []net.Addr
	fast FastPath // nil: none

	loops   []*loop
	ports   atomic.Pointer[[]Port] // that the first loop may drive
	open    atomic.Int64
	pending atomic.Int64
	users   users
	discard discarder

	mu      sync.Mutex
	started bool
	ended   bool
}

// New opens the listeners and makes the rendezvous files. Clients can connect
// from now on; they are served once Start was called.
func New(cfg Config, r resolver.Resolver, log *slog.Logger) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	rdv, err := listen(&cfg, log)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, r: r, log: log, rdv: rdv, addr: rdv.addrs()}
	for range cfg.Threads {
		l, err := newLoop(s)
		if err != nil {
			s.release()
			return nil, err
		}
		s.loops = append(s.loops, l)
	}
	if err := s.loops[0].listen(rdv.listeners); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

// release undoes New for a server that was never started.
func (s *Server) release() {
	s.rdv.close()
	for _, l := range s.loops {
		l.free()
	}
}

// Addrs are the addresses that the server listens on.
func (s *Server) Addrs() []net.Addr { return s.addr }

// Start begins to serve. It may be called once.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.ended {
		return
	}
	s.started = true
	for _, l := range s.loops {
		go l.main()
	}
}

// Drain ends the server: it removes the rendezvous files, accepts nobody new,
// serves what was sent before, waits for the answers that are owed and closes
// each connection once it has them. When ctx ends first the rest is closed as it
// is and the context's error returned. Answers that the engine gives later are
// dropped.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	s.ended = true
	if !s.started {
		s.release()
		return nil
	}
	s.rdv.withdraw()
	for _, l := range s.loops {
		l.box.order(orderDrain)
	}
	var err error
	for _, l := range s.loops {
		select {
		case <-l.done:
		case <-ctx.Done():
			if err == nil && s.open.Load() > 0 {
				err = ctx.Err()
			}
			l.box.order(orderStop)
			<-l.done
		}
	}
	s.discard.wait()
	return err
}

// Close ends the server at once.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Drain(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// users counts connections by user id, for the bound of one user.
type users struct {
	mu sync.Mutex
	n  map[uint32]int
}

// take counts one more connection of uid, unless it has limit already.
func (u *users) take(uid uint32, limit int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == nil {
		u.n = make(map[uint32]int)
	}
	if u.n[uid] >= limit {
		return false
	}
	u.n[uid]++
	return true
}

func (u *users) give(uid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n[uid]--; u.n[uid] <= 0 {
		delete(u.n, uid)
	}
}
