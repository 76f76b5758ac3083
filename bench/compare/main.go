// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// comparisons in the order of doc.go; run.sh runs all of them.
var comparisons = []struct {
	name string
	run  func(*bench)
}{
	{"cached", (*bench).cached},
	{"fastpath", (*bench).fastpath},
	{"counting", (*bench).counting},
	{"clients", (*bench).clients},
	{"pipelined", (*bench).pipelined},
	{"cold", (*bench).cold},
	{"cold-gid", (*bench).coldGID},
	{"cold-blocking", (*bench).coldBlocking},
	{"cold-apart", (*bench).coldApart},
	{"multicast", (*bench).multicast},
	{"storm", (*bench).storm},
	{"prefetch", (*bench).prefetch},
	{"scrape", (*bench).scrape},
	{"dead", (*bench).dead},
	{"hostile", (*bench).hostile},
	{"start", (*bench).start},
	{"gobench", (*bench).gobench},
	{"machine", (*bench).machine},
}

// bench is one comparison: its settings, and what it has found.
type bench struct {
	*tb
	root   string // of the repository
	acmd   string // the daemon's program
	bin    string // directory of acmload and echo
	quick  bool
	rounds int
	slice  time.Duration // length of one measurement

	marks []mark
	wrong []string // what went wrong with answers
}

func main() {
	b := &bench{}
	quick := flag.Bool("quick", false, "one short round: is the harness sound?")
	rounds := flag.Int("rounds", 5, "rounds")
	slice := flag.Duration("t", 1500*time.Millisecond, "length of one measurement")
	strict := flag.Bool("strict", false, "exit with status 1 also when a mark is missed")
	acmd := flag.String("acmd", "", "the daemon `program`; bin/acmd of the repository by default")
	flag.Usage = usage
	flag.Parse()
	run := find(flag.Arg(0))
	if flag.NArg() != 1 || run == nil || *rounds < 1 || *slice <= 0 {
		usage()
		os.Exit(2)
	}
	b.quick, b.rounds, b.slice, b.acmd = *quick, *rounds, *slice, *acmd
	if b.quick {
		b.rounds, b.slice = 1, 100*time.Millisecond
	}
	os.Exit(b.main(run, *strict))
}

func usage() {
	fmt.Fprintln(flag.CommandLine.Output(), "usage: compare [flags] COMPARISON")
	for _, c := range comparisons {
		fmt.Fprintln(flag.CommandLine.Output(), "  "+c.name)
	}
	flag.PrintDefaults()
}

func find(name string) func(*bench) {
	for _, c := range comparisons {
		if c.name == name {
			return c.run
		}
	}
	return nil
}

// main runs one comparison and cleans up behind it, also after a signal.
func (b *bench) main(run func(*bench), strict bool) (status int) {
	b.tb = newTB()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		b.tb.abort()
		fmt.Fprintln(os.Stderr, "compare:", s)
		os.Exit(1)
	}()
	err := b.tb.run(func() {
		b.prepare()
		run(b)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		return 1
	}
	missed := b.printMarks()
	for _, w := range b.wrong {
		fmt.Fprintln(os.Stderr, "compare: wrong answer:", w)
	}
	if len(b.wrong) > 0 || strict && missed > 0 {
		return 1
	}
	return 0
}

// prepare finds the repository and builds the load generator.
func (b *bench) prepare() {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		b.Fatalf("this program's source is not known: build it without -trimpath")
	}
	b.root = filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if _, err := os.Stat(filepath.Join(b.root, "bench", "go.mod")); err != nil {
		b.Fatalf("repository: %v", err)
	}
	if b.acmd == "" {
		b.acmd = filepath.Join(b.root, "bin", "acmd")
	}
	if _, err := os.Stat(b.acmd); err != nil {
		b.Fatalf("%v: make build first", err)
	}
	b.bin = b.TempDir()
	b.command(filepath.Join(b.root, "bench"), "go", "build", "-o", b.acmload(), "./acmload")
}

func (b *bench) acmload() string { return filepath.Join(b.bin, "acmload") }

// warn notes that an answer was wrong or missing.
func (b *bench) warn(format string, args ...any) {
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

// eachRound lets the contestants take turns. What each does must not depend on
// the others.
func (b *bench) eachRound(contestants ...func()) {
	for range b.rounds {
		for _, c := range contestants {
			c()
		}
	}
}

func (b *bench) heading(title string, lines ...string) {
	fmt.Printf("\n## %s\n\n%s\n\n", title, strings.Join(lines, "\n"))
}
