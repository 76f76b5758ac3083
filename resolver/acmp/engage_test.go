// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad/fabric"
	"acmd/resolver"
)

// The port is worth having for an event loop from the question on, while a lookup
// is on its first gap, and no longer: a dead name must not hold it for all its
// tries.
func TestEngages(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4, Silent: 4}, func(t *testing.T, f *fabric.Fabric) {
		nd := start(t, f, 0, Config{Retries: 2})
		time.Sleep(time.Second)
		if nd.client.Busy() {
			t.Fatal("busy with nothing")
		}
		ch := nd.locate(resolver.NameAddr("nobody"), 0)
		short := nd.locate(v4(2), time.Millisecond)
		if !nd.client.Busy() {
			t.Error("not busy right after a question")
		}
		time.Sleep(firstGap - time.Millisecond)
		if !nd.client.Busy() {
			t.Error("not busy on the first gap")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if nd.client.Busy() || len(ch) != 0 {
			t.Error("busy behind the first gap")
		}
		<-short
		<-ch
		nd.locate(resolver.NameAddr("nobody"), 0)
		synctest.Wait()
		nd.stop()
		if nd.client.Busy() {
			t.Error("busy when closed")
		}
		<-nd.locate(v4(2), time.Second) // refused
		if nd.client.Busy() {
			t.Error("busy with a question that was refused")
		}
	})
}
