// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"slices"
	"sync"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/ring"
	madsa "acmd/mad/sa"
	"acmd/mad/transport"
)

// rated notes the static rates of the datagrams that a port sends.
type rated struct {
	transport.Port
	mu    sync.Mutex
	rates []mad.Rate
}

func (r *rated) Send(slots []*ring.Slot) (int, error) {
	r.mu.Lock()
	for _, s := range slots {
		if s.MAD().Class() == mad.ClassACM {
			r.rates = append(r.rates, s.Header().StaticRate())
		}
	}
	r.mu.Unlock()
	return r.Port.Send(slots)
}

func (r *rated) take() (rates []mad.Rate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rates, r.rates = r.rates, nil
	return rates
}

// Requests and answers leave no faster than the group allows, whose slowest member
// need not keep up with us. A rate that nobody knows is none (field case 56).
func TestStaticRate(t *testing.T) {
	inBubble(t, fabric.Config{Nodes: 4, Silent: 4}, func(t *testing.T, f *fabric.Fabric) {
		ports := [2]*rated{{}, {}}
		var nodes [2]*node
		for i, r := range ports {
			nodes[i] = start(t, f, i, Config{}, func(p transport.Port) transport.Port { r.Port = p; return r })
			defer nodes[i].stop()
		}
		time.Sleep(time.Second)
		for _, step := range []struct{ group, want mad.Rate }{{3, 3}, {7, 7}, {63, 0}} {
			done := make(chan struct{})
			for _, nd := range nodes {
				if err := nd.client.Post(func() {
					nd.src.ports[portKey{fabric.DeviceName, 1}].members[0].groups[0].rec.SetRate(madsa.Exactly, step.group)
					done <- struct{}{}
				}); err != nil {
					t.Fatal(err)
				}
				<-done
			}
			nodes[0].must(v4(1), 1)
			for i, r := range ports {
				if rates := r.take(); !slices.Equal(rates, []mad.Rate{step.want}) {
					t.Errorf("group of rate %d: node %d sent with %v, want one with %d", step.group, i, rates, step.want)
				}
			}
		}
	})
}
