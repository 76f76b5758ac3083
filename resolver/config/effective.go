// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"fmt"
	"io"
	"strings"
)

// Value is one setting in text form, as `acmctl config` shows it.
type Value struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Origin string `json:"origin"` // "default", "FILE:LINE" or "flag"
}

// Values lists every setting in the order of the generated file; provider rules
// come last.
func (s *Settings) Values() []Value {
	vs := make([]Value, 0, len(options)+len(s.Providers)+1)
	for _, o := range options {
		vs = append(vs, Value{o.name, o.get(s), s.origins[o.name].String()})
	}
	for _, r := range s.Providers {
		vs = append(vs, Value{"provider", fmt.Sprintf("%s %#x", r.Name, r.Prefix), r.Origin.String()})
	}
	return append(vs, Value{"provider", s.DefaultProvider + " default", s.origins[providerDefault].String()})
}

// Effective prints every setting, one a line: name, value, origin behind a #, so
// that the output is itself an options file.
func (s *Settings) Effective(w io.Writer) error {
	var b strings.Builder
	for _, v := range s.Values() {
		if v.Value == "" {
			fmt.Fprintf(&b, "# %s is not set\n", v.Name)
			continue
		}
		fmt.Fprintf(&b, "%-24s %-28s # %s\n", v.Name, v.Value, v.Origin)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// SetFlag overrides an option from the command line.
func (s *Settings) SetFlag(name, value string) error {
	name = strings.ToLower(name)
	o := optionIndex[name]
	if o == nil {
		return fmt.Errorf("unknown option %q", name)
	}
	if err := o.set(s, value); err != nil {
		return fmt.Errorf("option %s: %w", name, err)
	}
	s.origins[name] = Origin{Flag: true}
	return nil
}

// Changed names the options whose values differ between two settings, for a
// reload to say what it did. "provider" stands for all provider lines.
func Changed(a, b *Settings) []string {
	var names []string
	for _, o := range options {
		if o.get(a) != o.get(b) {
			names = append(names, o.name)
		}
	}
	if !sameProviders(a, b) {
		names = append(names, "provider")
	}
	return names
}

func sameProviders(a, b *Settings) bool {
	if a.DefaultProvider != b.DefaultProvider || len(a.Providers) != len(b.Providers) {
		return false
	}
	for i, r := range a.Providers {
		if r.Name != b.Providers[i].Name || r.Prefix != b.Providers[i].Prefix {
			return false
		}
	}
	return true
}
