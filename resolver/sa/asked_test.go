// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"testing"
	"testing/synctest"

	"acmd/mad"
)

// Each try is told before it is sent, with its TID; other packets are not.
func TestAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t, nil)
		var told []uint32
		var sentBefore []int
		c := Open(p, activeInfo(), Config{Retries: 1, Asked: func(tid uint32) {
			told, sentBefore = append(told, tid), append(sentBefore, len(p.sends()))
		}}, nil)
		done := make(chan bool)
		c.Post(func() {
			var h mad.UserHeader
			h.SetLID(7)
			c.SendTo(&h, new(mad.Packet))
			close(done)
		})
		<-done
		<-ask(t, c, 7)
		closeAll(t, c, p) // the owner has ended: nobody writes to told any more
		log := p.sends()
		if len(log) != 3 || len(told) != 2 {
			t.Fatalf("%d packets sent, told of %d", len(log), len(told))
		}
		for i, tid := range told {
			if log[i+1].mad.TID().Low() != tid || sentBefore[i] != i+1 {
				t.Errorf("try %d: told TID %#x behind %d packets, sent %v", i, tid, sentBefore[i], log[i+1].mad.TID())
			}
		}
	})
}
