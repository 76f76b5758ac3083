// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"net"
	"sync"
	"sync/atomic"
)

// limited is a listener with a bound on open connections. One too many is closed
// at once: left in the backlog, it would keep a scraper waiting behind whoever
// holds the others.
type limited struct {
	net.Listener
	free     chan struct{} // a token for each connection that may still come
	rejected atomic.Uint64
}

func limit(ln net.Listener) *limited {
	l := &limited{Listener: ln, free: make(chan struct{}, maxConnections)}
	for range maxConnections {
		l.free <- struct{}{}
	}
	return l
}

// Accept implements [net.Listener].
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case <-l.free:
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { l.free <- struct{}{} })}, nil
		default:
			l.rejected.Add(1)
			_ = c.Close() // it is not wanted
		}
	}
}

// limitedConn gives its token back when it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

// Close implements [net.Conn].
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
