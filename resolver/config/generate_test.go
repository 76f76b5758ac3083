// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"acmd/mad"
)

// PKeyGen draws keys that can be in a table.
var PKeyGen = rapid.Custom(func(t *rapid.T) mad.PKey {
	return mad.PKey(rapid.Uint16Range(1, 0x7fff).Draw(t, "number")) | mad.PKey(rapid.SampledFrom([]uint16{0, 0x8000}).Draw(t, "full"))
})

// The live lines of the written file are those of ibacm's generator, in order;
// a stock ibacm reads it as its defaults.
func TestWriteOptions(t *testing.T) {
	var b bytes.Buffer
	if err := WriteOptions(&b, "", ""); err != nil {
		t.Fatal(err)
	}
	var live strings.Builder
	for line := range strings.Lines(b.String()) {
		if len(line) > 120 {
			t.Errorf("ibacm splits lines of %d bytes: %s", len(line), line)
		}
		if line[0] != '#' && line != "\n" {
			live.WriteString(line)
		}
	}
	if d := cmp.Diff(generated, live.String()); d != "" {
		t.Fatal(d)
	}
	s, ps, err := Read(&b, "o.cfg", Env{Check: true})
	if err != nil || len(ps) != 0 {
		t.Fatal(ps, err)
	}
	if d := cmp.Diff(Defaults("", ""), s, bySettings); d != "" {
		t.Fatal(d)
	}
}

// Uncommenting everything changes nothing either, and every option is described.
func TestWriteOptionsUncommented(t *testing.T) {
	var b bytes.Buffer
	if err := WriteOptions(&b, "/c", "/r"); err != nil {
		t.Fatal(err)
	}
	for _, o := range options {
		if meanings[o.name] == "" {
			t.Errorf("option %s is not described", o.name)
		}
		line := o.name + " " + o.get(Defaults("/c", "/r"))
		if !strings.Contains(b.String(), strings.TrimSpace(line)+"\n") {
			t.Errorf("%q is not in the file", line)
		}
	}
	for name := range commented {
		b = *bytes.NewBufferString(strings.Replace(b.String(), "# "+name+" ", name+" ", 1))
	}
	s, ps, err := Read(&b, "o.cfg", Env{ConfDir: "/c", RunDir: "/r", Check: true})
	if err != nil || len(ps) != 0 {
		t.Fatal(ps, err)
	}
	if c := Changed(Defaults("/c", "/r"), s); len(c) != 0 {
		t.Fatal(c)
	}
	for name := range commented {
		if name != "provider_lib_path" && s.Origin(name).File == "" {
			t.Errorf("%s was not uncommented", name)
		}
	}
}

// What ibacm does not have is explained in the table of README.md.
func TestOwnOptionsAreInReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	own := false
	for _, o := range options {
		own = own || o.name == "request_timeout"
		if row := regexp.MustCompile("(?m)^\\|[^|]*`" + o.name + "`[^|]*\\|.*\\|$"); own && !row.Match(readme) {
			t.Errorf("README.md has no row for %s", o.name)
		}
		if meanings[o.name] == "" {
			t.Errorf("the generated file does not explain %s", o.name)
		}
	}
}
