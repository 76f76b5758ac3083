// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package acmsock is the client protocol door of acmd: the server that local
// programs (librdmacm, ib_acme) connect to, and a Go client of it. The protocol
// is that of rdma-core's ibacm (librdmacm/acm.h): a 16-byte header and up to
// eight 72-byte records over a unix or TCP stream. RESOLVE messages are in the
// host's byte order, PERF_QUERY and EP_QUERY in network byte order; addresses
// and path records are network order everywhere.
//
// The codec (wire.go, request.go, reply.go, decode.go) is pure and shared by
// both sides. [ParseRequest] turns a framed message into a [resolver.Query];
// the reply builders produce the bytes that ibacm would, down to its uneven use
// of the ACK bit.
//
// The server runs a few epoll loops, each one goroutine outside of the runtime's
// network poller. A request that the engine can answer at once is read, answered
// and written without leaving the loop: one recv and one send. Others wait in
// the engine, and their replies come back through the loop's mailbox. Replies
// keep the order of requests on each connection.
//
// A client that pipelines must use transaction ids: a request with tid 0 that
// arrives while an earlier one with tid 0 is owed supersedes it. librdmacm
// always sends 0, never checks it, and keeps its connection after it gave up on
// a reply; answering the abandoned request would hand it a path for the wrong
// destination. Replies that already left for the client's socket buffer cannot
// be recalled.
package acmsock
