// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric_test

import (
	"fmt"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/ring"
	"acmd/mad/sa"
)

// A subnet of a thousand nodes, one query, and one that the SA never sees.
func Example() {
	f, err := fabric.New(fabric.Config{Nodes: 1000, Topology: fabric.Torus, Seed: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	port, err := f.Open(fabric.DeviceName, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	slot := port.Ring().Get()
	defer slot.Release()
	for range 2 {
		h, p := slot.Header(), slot.MAD()
		*h = mad.UserHeader{}
		h.SetLID(f.SMLID())
		h.SetQPN(mad.QP1)
		sa.Init(p, mad.MethodGet, sa.AttrPathRecord, sa.PathSGID|sa.PathDGID)
		sa.Path(p).SetSGID(f.GID(0, 1))
		sa.Path(p).SetDGID(f.GID(7, 1))
		if _, err := port.Send([]*ring.Slot{slot}); err != nil {
			fmt.Println(err)
		}
		n, _ := port.Recv([]*ring.Slot{slot}, time.Now().Add(time.Millisecond))
		if n == 0 {
			fmt.Println("no answer")
			continue
		}
		fmt.Printf("%s has LID %v\n", fabric.NodeName(7, 1), sa.Path(p).DLID())
		f.AddRule(fabric.Rule{Do: fabric.Drop, Class: mad.ClassSA})
	}
	// Output:
	// node0007 has LID 8
	// no answer
}
