// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// MaxLine bounds a line of a configuration file in bytes.
const MaxLine = 64 << 10

// MaxFile bounds a configuration file in bytes. One that is longer, or a device
// that never ends, is refused instead of being read for ever.
const MaxFile = 64 << 20

// MaxProblems bounds the problems kept of one file; one more counts the rest.
const MaxProblems = 100

// Problem is something in a file that is not as it should be. It is an error
// whose text begins with file and line.
type Problem struct {
	File  string
	Line  int    // 1-based; 0: the file as a whole
	Fatal bool   // the service must not start with it; otherwise a warning
	Text  string //
}

func (p Problem) Error() string {
	if p.Line == 0 {
		return p.File + ": " + p.Text
	}
	return p.File + ":" + strconv.Itoa(p.Line) + ": " + p.Text
}

// Env is what the meaning of an options file depends on.
type Env struct {
	ConfDir string // for defaults; empty: DefaultConfDir
	RunDir  string // for defaults; empty: DefaultRunDir
	Dir     string // of relative paths in the file; empty: they stay relative
	// Sources are the names that addr_prot may list, Providers those that a
	// provider line may name. Nil accepts only "acm" and "ibacmp".
	Sources   []string
	Providers []string
	Systemd   bool // --systemd: the mode is unix whatever the file says
	Activated bool // the client socket was passed in, with its symbolic links
	Check     bool // every problem is an error

	Background bool // standard output and error lead nowhere once clients are served
	NoKernel   bool // the fabric is not the kernel's
	NoQueues   bool // there are no queue pairs of our own
}

// Load reads an options file. A missing one gives the defaults. The settings
// are usable unless the error is not nil: the file cannot be read, or a problem
// is fatal (with Env.Check: any problem).
func Load(path string, env Env) (*Settings, []Problem, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Read(strings.NewReader(""), path, env)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("options file: %w", err)
	}
	defer f.Close()
	return Read(f, path, env)
}

// Read is Load on a reader; name stands for the file in messages and origins.
func Read(r io.Reader, name string, env Env) (*Settings, []Problem, error) {
	if env.Sources == nil {
		env.Sources = []string{sourceACM}
	}
	if env.Providers == nil {
		env.Providers = []string{"ibacmp"}
	}
	l := loader{env: env, s: Defaults(env.ConfDir, env.RunDir), log: Problems{File: name}}
	l.s.sources, l.s.dir = env.Sources, env.Dir
	err := eachLine(r, &l.log, func(n int, words []string) { l.line(Origin{File: name, Line: n}, words) })
	if err != nil {
		return nil, nil, fmt.Errorf("options file %s: %w", name, err)
	}
	l.inert()
	list := l.log.Done()
	return l.s, list, Errors(list, env.Check)
}

// Problems collects what is wrong with one file, at most MaxProblems of it.
type Problems struct {
	File  string
	list  []Problem
	more  int // beyond MaxProblems
	fatal bool
}

// maxText bounds the text of a problem in bytes: what a file has in a line is told, but
// not all of a line that is as long as a file.
const maxText = 600

// clip takes the middle out of a text that is too long.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	const half = maxText / 2
	return strings.ToValidUTF8(text[:half], "") + " ... " + strings.ToValidUTF8(text[len(text)-half:], "")
}

func (p *Problems) add(line int, fatal bool, format string, a ...any) {
	if len(p.list) >= MaxProblems {
		p.more++
		p.fatal = p.fatal || fatal
		return
	}
	p.list = append(p.list, Problem{File: p.File, Line: line, Fatal: fatal, Text: clip(fmt.Sprintf(format, a...))})
}

// Done returns the list, closed by one entry for all that the bound left out.
func (p *Problems) Done() []Problem {
	if p.more > 0 {
		p.list = append(p.list, Problem{File: p.File, Fatal: p.fatal, Text: fmt.Sprintf("%d more problems", p.more)})
		p.more = 0
	}
	return p.list
}

// Warn adds a warning about a line, 1-based; 0 is the file as a whole.
func (p *Problems) Warn(line int, format string, a ...any) { p.add(line, false, format, a...) }

// Errors joins the problems that keep the service from starting: the fatal
// ones, or with check every one. It returns nil if there are none.
func Errors(list []Problem, check bool) error {
	var errs []error
	for _, q := range list {
		if q.Fatal || check {
			errs = append(errs, q)
		}
	}
	return errors.Join(errs...)
}

// TrimMark takes the byte order mark off the first line of a file: some editors write
// UTF-8 with one.
func TrimMark(b []byte) []byte { return bytes.TrimPrefix(b, []byte("\ufeff")) }

// eachLine splits r into lines and lines into words. A comment has # in its
// first column; one that is indented, or stands behind a line, names no option
// either and is dropped too.
func eachLine(r io.Reader, log *Problems, f func(line int, words []string)) error {
	left := &io.LimitedReader{R: r, N: MaxFile + 1}
	br := bufio.NewReaderSize(left, MaxLine)
	for n := 1; ; n++ {
		b, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			log.Warn(n, "line longer than %d bytes, ignored", MaxLine)
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = br.ReadSlice('\n')
			}
			b = nil
		}
		if err != nil && err != io.EOF {
			return err
		}
		if left.N == 0 {
			return fmt.Errorf("longer than %d bytes", MaxFile)
		}
		if n == 1 {
			b = TrimMark(b)
		}
		if bytes.IndexByte(b, 0) >= 0 {
			log.Warn(n, "line has a NUL byte, ignored")
			b = nil
		}
		words := strings.Fields(string(b))
		if i := slices.IndexFunc(words, func(w string) bool { return w[0] == '#' }); i >= 0 {
			words = words[:i]
		}
		if len(words) > 0 {
			f(n, words)
		}
		if err == io.EOF {
			return nil
		}
	}
}

type loader struct {
	env Env
	s   *Settings
	log Problems
}

func (l *loader) line(at Origin, words []string) {
	name := strings.ToLower(words[0])
	if name == "provider" {
		l.provider(at, words[1:])
		return
	}
	o := optionIndex[name]
	switch {
	case o == nil:
		l.log.Warn(at.Line, "unknown option %q, ignored", words[0])
		return
	case len(words) == 1:
		l.log.Warn(at.Line, "option %s has no value, %s stays in force", name, o.get(l.s))
		return
	case len(words) > 2:
		l.log.Warn(at.Line, "option %s takes one value, %q ignored", name, strings.Join(words[2:], " "))
	}
	if old, ok := l.s.origins[name]; ok {
		l.log.Warn(at.Line, "option %s was already set in line %d, this line counts", name, old.Line)
	}
	if !l.set(o, at, words[1]) {
		return
	}
	l.s.origins[name] = at
}

func (l *loader) set(o *option, at Origin, value string) bool {
	if o.name == "addr_prot" {
		return l.addrProt(at, value)
	}
	if err := o.set(l.s, value); err != nil {
		l.log.Warn(at.Line, "option %s: %v; %s stays in force", o.name, err, o.get(l.s))
		return false
	}
	return true
}

// addrProt reads a list of address sources. "sa" is a word that sites have tried, in
// the hope for an address step without a daemon on the peer: it never did anything,
// since the SA knows no names or IP addresses. The neighbour table is what they want.
func (l *loader) addrProt(at Origin, value string) bool {
	var list []string
	for w := range strings.SplitSeq(strings.ToLower(value), ",") {
		if w == "sa" && slices.Contains(l.env.Sources, sourceNeigh) {
			l.log.Warn(at.Line, "option addr_prot: sa is read as %s: the SA does not know names or IP addresses, and the kernel's neighbour table needs no daemon on the peer either", sourceNeigh)
			w = sourceNeigh
		}
		switch {
		case slices.Contains(l.env.Sources, w):
			if slices.Contains(list, w) {
				l.log.Warn(at.Line, "option addr_prot names %s twice", w)
				continue
			}
			list = append(list, w)
		case w == "sa":
			l.log.Warn(at.Line, "option addr_prot: sa has no effect, the SA does not know names or IP addresses (known: %s)", strings.Join(l.env.Sources, ", "))
		default:
			l.log.add(at.Line, true, "option addr_prot: unknown source %q (known: %s)", w, strings.Join(l.env.Sources, ", "))
		}
	}
	if len(list) == 0 {
		return false
	}
	l.s.AddrProt = list
	return true
}

func (l *loader) provider(at Origin, words []string) {
	switch {
	case len(words) < 2:
		l.log.Warn(at.Line, "provider line needs a name and a subnet prefix or \"default\", ignored")
		return
	case len(words) > 2:
		l.log.Warn(at.Line, "provider line takes two words, %q ignored", strings.Join(words[2:], " "))
	}
	i := slices.IndexFunc(l.env.Providers, func(p string) bool { return strings.EqualFold(p, words[0]) })
	if i < 0 {
		l.log.Warn(at.Line, "no provider %q here, line ignored (known: %s)", words[0], strings.Join(l.env.Providers, ", "))
		return
	}
	name := l.env.Providers[i]
	if strings.EqualFold(words[1], "default") {
		if old, ok := l.s.origins[providerDefault]; ok {
			l.log.Warn(at.Line, "the default provider was already set in line %d, this line counts", old.Line)
		}
		l.s.DefaultProvider = name
		l.s.origins[providerDefault] = at
		return
	}
	prefix, err := strconv.ParseUint(words[1], 0, 64)
	if err != nil || strings.Contains(words[1], "_") {
		l.log.Warn(at.Line, "provider %s: %q is neither a 64-bit subnet prefix nor \"default\", line ignored", name, words[1])
		return
	}
	for _, r := range l.s.Providers {
		if r.Prefix == prefix {
			l.log.Warn(at.Line, "subnet prefix %#x already has a provider in line %d, line ignored", prefix, r.Origin.Line)
			return
		}
	}
	l.s.Providers = append(l.s.Providers, ProviderRule{Name: name, Prefix: prefix, Origin: at})
}
