// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"acmd/mad/sa"
	"acmd/resolver"
)

// Client is a connection to a service, acmd or ibacm. Requests are serialised:
// ibacm takes only one at a time. All methods are safe for concurrent use.
//
// A failure other than a *[StatusError] leaves the connection without a defined
// state; it is closed and every later call fails with [net.ErrClosed].
type Client struct {
	conn net.Conn

	mu     sync.Mutex
	tid    uint64
	buf    []byte
	broken error
}

func newClient(c net.Conn) *Client {
	return &Client{conn: c, buf: make([]byte, 0, MaxRequest)}
}

// NewClient speaks the protocol on an open stream, which it takes over.
func NewClient(c net.Conn) *Client { return newClient(c) }

// Close closes the connection; a request in progress fails.
func (c *Client) Close() error { return c.conn.Close() }

// RemoteAddr is the address of the service.
func (c *Client) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// RoundTrip sends one request as it is, in one write, and returns the reply,
// whose tid must be that of the request. The deadline of ctx is obeyed; without
// one it may wait for ever. The request's own framing is not checked.
func (c *Client) RoundTrip(ctx context.Context, req []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.roundTrip(ctx, req)
}

func (c *Client) roundTrip(ctx context.Context, req []byte) ([]byte, error) {
	if len(req) < HeaderSize {
		return nil, fmt.Errorf("request of %d bytes has no header", len(req))
	}
	if c.broken != nil {
		return nil, fmt.Errorf("%w after: %w", net.ErrClosed, c.broken)
	}
	if err := ctx.Err(); err != nil {
		return nil, err // nothing was sent, the connection stays good
	}
	stop := c.follow(ctx)
	reply, err := c.exchange(req)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			err = context.DeadlineExceeded // the socket's timer was a little ahead of the context's
		}
		c.broken = err
		c.conn.Close()
		return nil, err
	}
	return reply, nil
}

// follow makes the connection's deadline that of ctx until stop is called.
func (c *Client) follow(ctx context.Context) (stop func()) {
	deadline, _ := ctx.Deadline()
	c.conn.SetDeadline(deadline)
	if ctx.Done() == nil {
		return func() {}
	}
	ran := make(chan struct{})
	end := context.AfterFunc(ctx, func() {
		c.conn.SetDeadline(time.Unix(1, 0))
		close(ran)
	})
	return func() {
		if !end() {
			<-ran // or it would spoil the deadline of the next request
		}
	}
}

// exchange reads the header, then the rest: endpoint replies can be long.
func (c *Client) exchange(req []byte) ([]byte, error) {
	if _, err := c.conn.Write(req); err != nil {
		return nil, fmt.Errorf("send request: %w", err)
	}
	var h [HeaderSize]byte
	if _, err := io.ReadFull(c.conn, h[:]); err != nil {
		return nil, fmt.Errorf("read reply: %w", err)
	}
	n := lengthOf(h[:])
	if h[0] != Version || n < HeaderSize {
		return nil, fmt.Errorf("%w: reply header % x", ErrProtocol, h)
	}
	if [8]byte(h[offTID:]) != [8]byte(req[offTID:]) {
		return nil, fmt.Errorf("%w: reply to another request, tid % x", ErrProtocol, h[offTID:])
	}
	b := make([]byte, n)
	copy(b, h[:])
	if _, err := io.ReadFull(c.conn, b[HeaderSize:]); err != nil {
		return nil, fmt.Errorf("read reply: %w", err)
	}
	return b, nil
}

// do builds a request with a fresh tid and returns its reply.
func (c *Client) do(ctx context.Context, build func(b []byte, tid uint64) []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tid++
	c.buf = build(c.buf[:0], c.tid)
	return c.roundTrip(ctx, c.buf)
}

// Resolve asks with records of the caller's choice, at most [MaxRecords]. A
// reply that is no success is a *[StatusError].
func (c *Client) Resolve(ctx context.Context, records ...Record) (Resolved, error) {
	if len(records) > MaxRecords {
		return Resolved{}, fmt.Errorf("%d records, at most %d fit", len(records), MaxRecords)
	}
	b, err := c.do(ctx, func(b []byte, tid uint64) []byte { return AppendResolve(b, tid, records...) })
	if err != nil {
		return Resolved{}, err
	}
	return DecodeResolve(b)
}

// ResolveAddr asks for the path from src to dst, which are of one kind. A zero
// src leaves the choice to the service, for IP addresses only. noDelay asks for
// a cached answer or StatusNoData.
func (c *Client) ResolveAddr(ctx context.Context, src, dst resolver.Addr, noDelay bool) (Resolved, error) {
	if src.IsZero() {
		return c.Resolve(ctx, DestRecord(dst, noDelay))
	}
	return c.Resolve(ctx, SourceRecord(src), DestRecord(dst, noDelay))
}

// ResolveIP is [Client.ResolveAddr] for IP addresses; an invalid src means none.
func (c *Client) ResolveIP(ctx context.Context, src, dst netip.Addr, noDelay bool) (Resolved, error) {
	if !dst.IsValid() {
		return Resolved{}, errors.New("no destination address")
	}
	var from resolver.Addr
	if src.IsValid() {
		from = resolver.IPAddr(src)
	}
	return c.ResolveAddr(ctx, from, resolver.IPAddr(dst), noDelay)
}

// ResolveName is [Client.ResolveAddr] for names; an empty src means none.
func (c *Client) ResolveName(ctx context.Context, src, dst string, noDelay bool) (Resolved, error) {
	var from resolver.Addr
	if src != "" {
		from = resolver.NameAddr(src)
	}
	return c.ResolveAddr(ctx, from, resolver.NameAddr(dst), noDelay)
}

// ResolvePath asks for a path by the LIDs or GIDs that are set in p.
func (c *Client) ResolvePath(ctx context.Context, p sa.PathRecord, noDelay bool) (Resolved, error) {
	var flags uint32
	if noDelay {
		flags = FlagNoDelay
	}
	return c.Resolve(ctx, PathQuery(p, flags))
}

// VerifySA asks the SA for a path with exactly the values that are set in p and
// returns the SA's record. With a *[StatusError] the record is what came back.
func (c *Client) VerifySA(ctx context.Context, p sa.PathRecord) (sa.PathRecord, error) {
	q := PathQuery(p, FlagQuerySA)
	b, err := c.do(ctx, func(b []byte, tid uint64) []byte { return AppendResolve(b, tid, q) })
	if err != nil {
		return sa.PathRecord{}, err
	}
	return DecodeSA(b)
}

// Perf reads counters: index 0 the service's totals, n those of the n-th
// endpoint, from 1. Seven are defined, see resolver.Counters.
func (c *Client) Perf(ctx context.Context, index uint8) ([]uint64, error) {
	b, err := c.do(ctx, func(b []byte, tid uint64) []byte { return AppendPerf(b, tid, index, nil) })
	if err != nil {
		return nil, err
	}
	return DecodePerf(b)
}

// PerfSource reads the counters of the endpoint that has the local address src.
func (c *Client) PerfSource(ctx context.Context, src resolver.Addr) ([]uint64, error) {
	b, err := c.do(ctx, func(b []byte, tid uint64) []byte { return AppendPerf(b, tid, 0, &src) })
	if err != nil {
		return nil, err
	}
	return DecodePerf(b)
}

// Endpoint describes the index-th endpoint, from 1, among those on ports with
// that number (0: all ports). StatusInvalid means there is none.
func (c *Client) Endpoint(ctx context.Context, index, port uint8) (EndpointInfo, error) {
	b, err := c.do(ctx, func(b []byte, tid uint64) []byte { return AppendEndpoint(b, tid, index, port) })
	if err != nil {
		return EndpointInfo{}, err
	}
	return DecodeEndpoint(b)
}

// TID returns the transaction id of a message, for callers of RoundTrip.
func TID(b []byte) uint64 {
	if len(b) < HeaderSize {
		return 0
	}
	return binary.NativeEndian.Uint64(b[offTID:])
}
