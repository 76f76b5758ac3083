// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/sa"
)

// benchPort opens the port of node 0 and fills n slots with queries to n nodes.
func benchPort(b *testing.B, c Config, n int) (*Fabric, *port, []*ring.Slot, []*ring.Slot) {
	f, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	tp, err := f.Open(DeviceName, 1)
	if err != nil {
		b.Fatal(err)
	}
	p := tp.(*port)
	out, in := make([]*ring.Slot, n), make([]*ring.Slot, n)
	p.ring.GetN(out)
	p.ring.GetN(in)
	for i, s := range out {
		query(f, s, mad.TID(i), sa.PathDGID|sa.PathSGID|sa.PathPKey, 0, 1+(i*97)%(c.Nodes-1))
	}
	return f, p, out, in
}

func BenchmarkPathGet(b *testing.B) {
	for _, topo := range []Topology{Star, FatTree, Torus} {
		for _, batch := range []int{1, 64} {
			b.Run(topo.String()+"/batch"+string(rune('0'+batch/10))+string(rune('0'+batch%10)), func(b *testing.B) {
				_, p, out, in := benchPort(b, Config{Nodes: MaxNodes, Topology: topo}, batch)
				b.ReportAllocs()
				for b.Loop() {
					if n, err := p.Send(out); n != batch {
						b.Fatal(err)
					}
					for got := 0; got < batch; {
						n, err := p.Recv(in, time.Time{})
						if err != nil {
							b.Fatal(err)
						}
						got += n
					}
				}
				b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "gets/s")
			})
		}
	}
}

func BenchmarkPathTable(b *testing.B) {
	for _, topo := range []Topology{Star, FatTree, Torus} {
		b.Run(topo.String(), func(b *testing.B) {
			f, p, out, in := benchPort(b, Config{Nodes: MaxNodes, Topology: topo}, 1)
			query(f, out[0], 1, sa.PathSGID, 0, 1)
			out[0].MAD().SetMethod(mad.MethodGetTable)
			for b.Loop() {
				p.Send(out)
				if n, err := p.Recv(in, time.Time{}); n != 1 || err != nil || len(in[0].Long()) != sa.DataOffset+64*MaxNodes {
					b.Fatal(n, err, len(in[0].Long()))
				}
			}
			b.ReportMetric(float64(b.N*MaxNodes)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		f, err := New(Config{Nodes: MaxNodes, Topology: Torus})
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}
