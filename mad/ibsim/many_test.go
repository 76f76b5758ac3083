// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim_test

import (
	"errors"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
	"acmd/mad/ring"
	"acmd/mad/sa"

	"golang.org/x/sys/unix"
)

// TestManyPaths asks a real OpenSM for the paths to all ports of 601 nodes, 64
// at a time, and compares every answer with OpenSM's own table of LIDs.
func TestManyPaths(t *testing.T) {
	f := peer.StartFabric(t, "n600.net")
	fab, port, info := open(t, config(f, "h7"))
	dests := make([]mad.LID, 0, len(f.LIDs()))
	guids := map[mad.LID]mad.GUID{}
	for guid, lid := range f.LIDs() {
		if guid < 0x200000 { // an adapter
			dests, guids[lid] = append(dests, lid), guid
		}
	}
	if len(dests) != 601 {
		t.Fatalf("%d adapters", len(dests))
	}
	const window = 64
	out, in := make([]*ring.Slot, window), make([]*ring.Slot, window)
	port.Ring().GetN(out)
	port.Ring().GetN(in)
	answered := map[uint32]bool{}
	for asked := 0; len(answered) < len(dests); {
		k := min(window-(asked-len(answered)), len(dests)-asked)
		for i, s := range out[:k] {
			*s.Header() = mad.UserHeader{}
			s.Header().SetLID(info.SMLID)
			s.Header().SetQPN(mad.QP1)
			pathQuery(mad.TID(asked+i), info.LID, dests[asked+i])(s.MAD())
		}
		// The simulator may itself wait for us to read: then what was taken counts.
		n, err := port.Send(out[:k])
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		asked += n
		n, err = port.Recv(in, time.Now().Add(madtest.AnswerTime))
		if n == 0 || err != nil {
			t.Fatalf("%d of %d answered, then %v", len(answered), asked, err)
		}
		for _, s := range in[:n] {
			tid, r := s.MAD().TID().Low(), sa.Path(s.MAD())
			if s.Header().Status() != 0 || s.MAD().Status() != 0 || int(tid) >= asked || answered[tid] {
				t.Fatalf("TID %#x: status %d, MAD status %#x", tid, s.Header().Status(), s.MAD().Status())
			}
			answered[tid] = true
			if want := dests[tid]; r.DLID() != want || r.DGID().GUID() != guids[want] || r.SLID() != info.LID {
				t.Errorf("path to LID %v: %v -> %v, DGID %v", want, r.SLID(), r.DLID(), r.DGID())
			}
		}
	}
	if s := fab.Stats(); s.Sent != 601 || s.Received != 601 || s.Dropped != 0 || s.Undelivered != 0 {
		t.Errorf("counters %+v", s)
	}
	for i := range out {
		out[i].Release()
		in[i].Release()
	}
}
