// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric_test

import (
	"testing"

	"acmd/mad/fabric"
	"acmd/mad/madtest"
	"acmd/mad/transport"
)

// The suite of all transports, with each kind of port.
func TestConformance(t *testing.T) {
	for name, c := range map[string]fabric.Config{
		"Plain":        {Nodes: 8},
		"KernelTimers": {Nodes: 8, KernelTimers: true},
		"LMC":          {Nodes: 8, LMC: 3, Topology: fabric.Torus},
		"NoListen":     {Nodes: 8, NoListen: true, KernelTimers: true, Delay: 1e6},
	} {
		t.Run(name, func(t *testing.T) {
			h := madtest.Harness{Poisoned: true, Reports: true}
			if c.KernelTimers {
				h.Unreachable = 0x700
			}
			h.New = func(t *testing.T) (transport.Fabric, string, uint8) {
				c := c
				c.Poison = true
				f, err := fabric.New(c)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
				return f, fabric.DeviceName, 1
			}
			madtest.TestTransport(t, h)
		})
	}
}
