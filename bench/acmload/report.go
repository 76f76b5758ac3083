// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/json"
	"fmt"
	"slices"
)

// result is what one run measured; the JSON names are the interface of scripts.
type result struct {
	Label      string    `json:"label,omitempty"`
	Server     string    `json:"server"`
	Conns      int       `json:"conns"`
	Pipeline   int       `json:"pipeline"`
	Targets    int       `json:"targets"`
	OK         int64     `json:"ok"`
	Failed     int64     `json:"failed"`
	FirstError string    `json:"first_error,omitempty"`
	Seconds    float64   `json:"seconds"`
	PerSec     float64   `json:"resolves_per_s"`
	P50us      float64   `json:"p50_us"`
	P99us      float64   `json:"p99_us"`
	P999us     float64   `json:"p999_us"`
	MaxUs      float64   `json:"max_us"`
	CPUPer1M   float64   `json:"server_cpu_s_per_1m,omitempty"`
	CPUShare   float64   `json:"server_cpu_share,omitempty"`
	CPURead    float64   `json:"server_cpu_read_s,omitempty"` // what reading the server's time took, beside the run
	Switches   float64   `json:"server_switches"`             // context switches per resolve
	OwnCPU     float64   `json:"own_cpu_s"`                   // of the load generator
	AlsoCPU    []float64 `json:"also_cpu_s,omitempty"`        // of the processes of -also, in their order
	Busy       float64   `json:"busy_share"`                  // of all processors of the machine
	RSSKB      int       `json:"server_rss_kb,omitempty"`
	PeakKB     int       `json:"server_peak_kb,omitempty"`
	Times      []uint32  `json:"times_ns,omitempty"` // of every right answer, ascending; with -times
}

func printHeader() {
	fmt.Printf("%-18s %5s %4s %10s %9s %9s %9s %9s %9s %6s %9s %7s\n", "label", "conns", "pipe",
		"resolves/s", "p50 us", "p99 us", "p99.9 us", "max us", "cpu s/1M", "cpu", "rss KB", "failed")
}

func (r *result) print(asJSON bool) {
	if asJSON {
		b, _ := json.Marshal(r)
		fmt.Println(string(b))
		return
	}
	fmt.Printf("%-18s %5d %4d %10.0f %9.1f %9.1f %9.1f %9.1f %9.2f %6.2f %9d %7d\n", r.Label,
		r.Conns, r.Pipeline, r.PerSec, r.P50us, r.P99us, r.P999us, r.MaxUs, r.CPUPer1M,
		r.CPUShare, r.RSSKB, r.Failed)
	if r.FirstError != "" {
		fmt.Printf("  first error: %s\n", r.FirstError)
	}
}

// median takes the median of every figure on its own.
func median(runs []result) result {
	m := runs[0]
	m.Label += " MEDIAN"
	mid := func(get func(*result) float64) float64 {
		v := make([]float64, len(runs))
		for i := range runs {
			v[i] = get(&runs[i])
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	m.PerSec = mid(func(r *result) float64 { return r.PerSec })
	m.P50us = mid(func(r *result) float64 { return r.P50us })
	m.P99us = mid(func(r *result) float64 { return r.P99us })
	m.P999us = mid(func(r *result) float64 { return r.P999us })
	m.MaxUs = mid(func(r *result) float64 { return r.MaxUs })
	m.CPUPer1M = mid(func(r *result) float64 { return r.CPUPer1M })
	m.CPUShare = mid(func(r *result) float64 { return r.CPUShare })
	m.Seconds = mid(func(r *result) float64 { return r.Seconds })
	m.RSSKB = int(mid(func(r *result) float64 { return float64(r.RSSKB) }))
	for i := range runs[1:] {
		m.OK += runs[i+1].OK
		m.Failed += runs[i+1].Failed
	}
	return m
}
