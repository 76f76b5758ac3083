// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuTime sums the run time of every thread of pid.
func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("no threads of pid %d", pid)
	}
	var total int64
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		n, _ := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		total += n
	}
	return time.Duration(total), nil
}

// switches sums the context switches of every thread of pid: how often the server
// went to sleep, or was made to.
func switches(pid int) (n int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid)) // the pattern is right
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 && strings.HasSuffix(f[0], "voluntary_ctxt_switches:") {
				k, _ := strconv.Atoi(f[1])
				n += k
			}
		}
	}
	return n
}

// rssKB returns the resident set size and its peak.
func rssKB(pid int) (now, peak int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return
	}
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "VmRSS:":
			now, _ = strconv.Atoi(f[1])
		case "VmHWM:":
			peak, _ = strconv.Atoi(f[1])
		}
	}
	return
}

// busyMeter measures how busy all processors of the machine are, from the first
// line of /proc/stat: its unit is a tick, 10 ms as a rule.
type busyMeter struct{ total, idle uint64 }

func startBusy() busyMeter {
	var m busyMeter
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		n, _ := strconv.ParseUint(f, 10, 64)
		if i >= 1 && i <= 8 { // guest time is in user time already
			m.total += n
		}
		if i == 4 || i == 5 { // idle, waiting for a disk
			m.idle += n
		}
	}
	return m
}

// share returns the share of processor time that was used since the start, 0 to 1.
func (m busyMeter) share() float64 {
	now := startBusy()
	if now.total == m.total {
		return 0
	}
	return 1 - float64(now.idle-m.idle)/float64(now.total-m.total)
}

// ownCPU is the processor time of this process. Threads that have ended count,
// which they do not in /proc: those of blocking connections end with them.
func ownCPU() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// usage is what several processes and the whole machine spend during a run. The
// clock is read last before the run and first after it, and next to it the server's
// time: what a server does while the other figures are read is no part of a run.
type usage struct {
	server   int // process, 0 for none
	pids     []int
	switches int
	busy     busyMeter
	others   []time.Duration
	cpu      time.Duration // of the server
	own      time.Duration
	begin    time.Time

	reading time.Duration // outside the run, for the server's time
}

func startUsage(server int, pids []int) *usage {
	u := &usage{server: server, pids: pids, switches: switches(server), busy: startBusy()}
	u.others = u.now()
	read := time.Now()
	u.cpu, _ = cpuTime(server) // a process that is not there has no time
	u.own = ownCPU()
	u.begin = time.Now()
	u.reading = u.begin.Sub(read)
	return u
}

func (u *usage) now() []time.Duration {
	list := make([]time.Duration, len(u.pids))
	for i, pid := range u.pids {
		list[i], _ = cpuTime(pid) // a process that has ended counts for nothing
	}
	return list
}

// stop returns a result with the length of the run and what was spent in it;
// CPUPer1M and Switches are sums, which summarize divides.
func (u *usage) stop() (r result) {
	end, own := time.Now(), ownCPU()
	wall := end.Sub(u.begin)
	r.Seconds, r.OwnCPU = wall.Seconds(), (own - u.own).Seconds()
	if u.server != 0 {
		if cpu, err := cpuTime(u.server); err == nil {
			r.CPUPer1M = (cpu - u.cpu).Seconds()
			r.CPUShare = r.CPUPer1M / r.Seconds
		}
		r.CPURead = (u.reading + time.Since(end)).Seconds()
	}
	for i, d := range u.now() {
		r.AlsoCPU = append(r.AlsoCPU, (d - u.others[i]).Seconds())
	}
	r.Busy = u.busy.share()
	if u.server != 0 {
		r.Switches = float64(switches(u.server) - u.switches)
		r.RSSKB, r.PeakKB = rssKB(u.server)
	}
	return r
}
