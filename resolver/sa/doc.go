// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package sa is the client of the subnet administrator, and the owner of a port.
//
// One goroutine per [Client] owns a transport.Port: it alone sends, receives,
// keeps the transactions that are on the wire, their timers and the window. It
// sleeps in Port.Recv until a message, the next timer, or Port.Wake by somebody
// who brought work. Everyone else hands work over a short queue with [Client.Path],
// [Client.Do] and [Client.Post], and is called back on that goroutine, so that
// callbacks must not block.
//
// A question becomes a flight: up to Retries+1 tries under one TID, the first at
// once, the next 500 ms later, then at gaps that double up to Timeout. A jitter
// of up to +25 % is drawn once per flight, so that its gaps never shrink. (When
// the SM moves while the kernel holds a try, the flight goes on under another
// TID, as the kernel would not take the same one again so soon.) A
// window bounds the flights that are in progress, because an SA that drops
// requests does so when it has too many; what does not fit waits in order, and
// the queue is bounded too.
//
// An answer ends a flight only if it is one: class, version, method, attribute
// and TID must be those asked for, all 16 bits of the status are judged, and the
// constrained fields of a PathRecord must be those of the question. What fails
// is counted and dropped, and the flight goes on.
//
// ACM datagrams and Reports arrive on the same port: [Client.Handle] takes them,
// [Client.SendTo] and [Client.Reply] send.
package sa
