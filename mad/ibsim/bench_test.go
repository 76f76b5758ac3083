// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim_test

import (
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ibsim"
	"acmd/mad/madtest/peer"
	"acmd/mad/ring"

	"golang.org/x/sys/unix"
)

// selfCPU is the processor time of this process, all threads.
func selfCPU(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkPathQuery asks a real OpenSM for paths with 16 queries outstanding, in
// a bare loop of one goroutine. cpu-us/path is what the transport costs in all,
// system calls and runtime included; time per operation is the simulator's and
// OpenSM's pace.
func BenchmarkPathQuery(b *testing.B) {
	f := peer.StartFabric(b, "small.net")
	fab, err := ibsim.New(ibsim.Config{Base: f.SockName, Node: "node-a"})
	if err != nil {
		b.Fatal(err)
	}
	defer fab.Close()
	list, err := fab.Devices()
	if err != nil || len(list) != 1 {
		b.Fatal(list, err)
	}
	info := list[0].Ports[0]
	port, err := fab.Open("ibsim0", 1)
	if err != nil {
		b.Fatal(err)
	}
	defer port.Close()
	var in, out [16]*ring.Slot
	port.Ring().GetN(in[:])
	port.Ring().GetN(out[:])
	for _, s := range out {
		*s.Header() = mad.UserHeader{}
		s.Header().SetLID(info.SMLID)
		s.Header().SetQPN(mad.QP1)
		pathQuery(0, info.LID, info.SMLID)(s.MAD())
	}
	deadline := time.Now().Add(time.Hour)
	cpu, sm, sim := selfCPU(b), f.OpenSM.CPU(), f.Ibsim.CPU()
	recvs := 0
	b.ReportAllocs()
	b.ResetTimer()
	for sent, done := 0, 0; done < b.N; recvs++ {
		k := min(len(out)-(sent-done), b.N-sent)
		for i, s := range out[:k] {
			s.MAD().SetTID(mad.TID(sent + i))
		}
		n, err := port.Send(out[:k])
		if err != nil {
			b.Fatal(err)
		}
		sent += n
		n, err = port.Recv(in[:], deadline)
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range in[:n] {
			if s.Header().Status() != 0 || s.MAD().Status() != 0 {
				b.Fatalf("status %d, MAD status %#x", s.Header().Status(), s.MAD().Status())
			}
		}
		done += n
	}
	b.StopTimer()
	per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(b.N) }
	b.ReportMetric(per(selfCPU(b)-cpu), "cpu-us/path")
	b.ReportMetric(per(f.OpenSM.CPU()-sm), "opensm-us/path")
	b.ReportMetric(per(f.Ibsim.CPU()-sim), "ibsim-us/path")
	b.ReportMetric(float64(b.N)/float64(max(recvs, 1)), "paths/recv")
}
