// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"time"

	"github.com/cilium/ebpf"
)

// ProgramStats is what the kernel knows of a loaded program. It counts only while
// the sysctl kernel.bpf_stats_enabled is set.
type ProgramStats struct {
	Name    string // as bpftool shows it
	Runs    uint64
	RunTime time.Duration
}

// Programs asks the kernel what the programs cost. It must not run at the same
// time as Close.
func (f *Fast) Programs() []ProgramStats {
	return statsOf(map[string]*ebpf.Program{
		"msg_verdict": f.obj.MsgVerdict, "lookup_add": f.obj.LookupAdd, "iter_add": f.obj.IterAdd, "sockops_conn": f.obj.SockopsConn,
	})
}

// statsOf asks the kernel, a system call or two for each program. One that is not
// loaded, or not any more, is left out.
func statsOf(progs map[string]*ebpf.Program) (list []ProgramStats) {
	for name, p := range progs {
		if p == nil {
			continue
		}
		if s, err := p.Stats(); err == nil {
			list = append(list, ProgramStats{name, s.RunCount, s.Runtime})
		}
	}
	return list
}
