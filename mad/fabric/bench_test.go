// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// cpu is the processor time that the process has used: on a machine that is
// shared it says more than the clock.
func cpu(b testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// rate reports n things per second of clock and of processor time.
func rate(b *testing.B, n int, unit string, since time.Duration) {
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), unit+"/s")
	b.ReportMetric(float64(n)/(cpu(b)-since).Seconds(), unit+"/cpu-s")
}

func BenchmarkPathGet(b *testing.B) {
	for _, topo := range []Topology{Star, FatTree, Torus} {
		for _, batch := range []int{1, 64} {
			b.Run(fmt.Sprintf("%v/batch%d", topo, batch), func(b *testing.B) {
				_, p, out, in := benchPort(b, Config{Nodes: MaxNodes, Topology: topo}, batch)
				b.ReportAllocs()
				before := cpu(b)
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
				rate(b, b.N*batch, "gets", before)
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
			before := cpu(b)
			for b.Loop() {
				p.Send(out)
				if n, err := p.Recv(in, time.Time{}); n != 1 || err != nil || len(in[0].Long()) != sa.DataOffset+64*MaxNodes {
					b.Fatal(n, err, len(in[0].Long()))
				}
			}
			rate(b, b.N*MaxNodes, "records", before)
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
