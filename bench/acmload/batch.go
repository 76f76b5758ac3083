// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// maxBatch is how many requests one write can carry: a server may stop reading
// a connection to which it owes 64 answers, and more would wait in the socket.
const maxBatch = 64

// runBatches resolves until stop, one write for so many requests. Answers may
// come in any order; each must belong to a request of the batch, once.
func (w *worker) runBatches(c stream, seed uint64, next func(*rand.Rand) *target, stop *atomic.Bool) {
	var (
		rng   = rand.New(rand.NewPCG(seed, 1))
		asked = make([]*target, 0, w.cfg.batch)
		out   = make([]byte, w.cfg.batch*(hdrLen+2*epLen))
		in    = make([]byte, maxBatch*maxMsg)
		first = seed << 32
	)
	for !stop.Load() {
		asked = asked[:0]
		n := 0
		for len(asked) < w.cfg.batch {
			t := next(rng)
			if t == nil {
				break
			}
			n += t.request(out[n:], first+uint64(len(asked)), w.cfg.nodelay, 0)
			asked = append(asked, t)
		}
		if len(asked) == 0 {
			return
		}
		at := time.Now()
		if _, err := c.Write(out[:n]); err != nil {
			w.fail(fmt.Errorf("write: %w", err))
			return
		}
		if err := w.readBatch(c, in, asked, first); err != nil {
			w.fail(err)
			return
		}
		w.lat = append(w.lat, uint32(min(time.Since(at), 4*time.Second)))
		first += uint64(len(asked))
	}
}

// readBatch reads and checks the answers to a batch whose TIDs count up from
// first. It empties asked.
func (w *worker) readBatch(c stream, buf []byte, asked []*target, first uint64) error {
	have := 0
	for left := len(asked); left > 0; {
		n, err := c.Read(buf[have:])
		if err != nil {
			return fmt.Errorf("read, %d answers missing: %w", left, err)
		}
		have += n
		at := 0
		for have-at >= hdrLen {
			size := int(native.Uint16(buf[at+6:]))
			if size < hdrLen || size > maxMsg {
				return fmt.Errorf("response length %d", size)
			}
			if have-at < size {
				break
			}
			msg := buf[at : at+size]
			i := native.Uint64(msg[8:]) - first
			if i >= uint64(len(asked)) || asked[i] == nil {
				return fmt.Errorf("an answer with tid %#x that is not awaited", first+i)
			}
			if err := asked[i].check(msg, first+i); err != nil {
				return fmt.Errorf("%s: %w", asked[i].text, err)
			}
			asked[i] = nil
			left--
			w.ok++
			at += size
		}
		have = copy(buf, buf[at:have])
	}
	return nil
}
