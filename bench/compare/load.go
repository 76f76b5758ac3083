// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// result is what acmload prints with -json.
type result struct {
	Conns      int       `json:"conns"`
	OK         int64     `json:"ok"`
	Failed     int64     `json:"failed"`
	FirstError string    `json:"first_error"`
	Seconds    float64   `json:"seconds"`
	PerSec     float64   `json:"resolves_per_s"`
	P50us      float64   `json:"p50_us"`
	P99us      float64   `json:"p99_us"`
	P999us     float64   `json:"p999_us"`
	MaxUs      float64   `json:"max_us"`
	CPUPer1M   float64   `json:"server_cpu_s_per_1m"`
	CPURead    float64   `json:"server_cpu_read_s"`
	Switches   float64   `json:"server_switches"`
	OwnCPU     float64   `json:"own_cpu_s"`
	AlsoCPU    []float64 `json:"also_cpu_s"`
	Busy       float64   `json:"busy_share"`
	RSSKB      int       `json:"server_rss_kb"`
	Times      []uint32  `json:"times_ns"` // ascending, if asked for
}

// dest is a destination with the only right answer.
type dest struct {
	src  string // kind:value, may be ""
	addr string // kind:value
	dgid string
	dlid int
}

func (d *dest) args() []string {
	args := []string{"-dst", fmt.Sprintf("%s,%s,%d", d.addr, d.dgid, d.dlid)}
	if d.src != "" {
		args = append(args, "-src", d.src)
	}
	return args
}

// loadCommand is an acmload that was not started yet. Raw I/O blocks without
// telling the Go scheduler, which is spared its preemption signals for that.
func (b *bench) loadCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(b.acmload(), args...)
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	return cmd
}

// load runs acmload and decodes the last line that it prints into out. What it
// complains about is an answer gone wrong.
func (b *bench) load(out any, args ...string) {
	var errs bytes.Buffer
	cmd := b.loadCommand(args...)
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		b.warn("acmload %s: %v: %s", strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if jerr := json.Unmarshal(lines[len(lines)-1], out); jerr != nil {
		b.Fatalf("acmload %s: no result (%v): %s", strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
}

// resolve runs "acmload resolve"; label says in messages who was asked.
func (b *bench) resolve(label string, args ...string) result {
	var r result
	b.load(&r, append([]string{"resolve", "-json"}, args...)...)
	if r.Failed > 0 || r.OK == 0 {
		b.warn("%s: %d of %d failed: %s", label, r.Failed, r.Failed+r.OK, r.FirstError)
	}
	return r
}
