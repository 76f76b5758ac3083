// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"acmd/mad"
)

// defaultNodes is the size of a fabric whose options do not give one.
const defaultNodes = 64

// options are the words of the command line and what they set.
var options = map[string]func(c *Config, value string) error{
	"nodes":    intOption(func(c *Config) *int { return &c.Nodes }, 2, MaxNodes),
	"topo":     topologyOption,
	"seed":     seedOption,
	"loss":     lossOption,
	"delay":    delayOption,
	"sarate":   intOption(func(c *Config) *int { return &c.SARate }, 1, 1<<30),
	"silent":   intOption(func(c *Config) *int { return &c.Silent }, 0, MaxNodes),
	"sm":       intOption(func(c *Config) *int { return &c.SMNode }, 0, MaxNodes-1),
	"ports":    intOption(func(c *Config) *int { return &c.Ports }, 1, maxPorts),
	"mixed":    flagOption(func(c *Config) *bool { return &c.Mixed }),
	"lmc":      lmcOption,
	"dims":     intOption(func(c *Config) *int { return &c.Dims }, 2, 3),
	"hosts":    intOption(func(c *Config) *int { return &c.Hosts }, 1, MaxNodes),
	"slow":     intOption(func(c *Config) *int { return &c.SlowEvery }, 1, MaxNodes),
	"pkeys":    pkeysOption,
	"prefix":   prefixOption,
	"timers":   flagOption(func(c *Config) *bool { return &c.KernelTimers }),
	"nolisten": flagOption(func(c *Config) *bool { return &c.NoListen }),
}

// ParseOptions reads the command line form of a Config:
//
//	embedded[:word=value,...]
//
// with the words nodes=64, topo=star|fattree|torus, seed=N, loss=0..1,
// delay=D or D..D, sarate=N (answers of the SA per second), silent=N, sm=NODE, ports=1|2, mixed, lmc=0..7, dims=2|3,
// hosts=N (nodes per switch), slow=N (each N-th node), pkeys=0xffff+0x8001
// (one table for all nodes), prefix=0xfe80000000000000, timers and nolisten. A
// word that does not take a value stands alone. "embedded" may be left out
// together with the colon.
func ParseOptions(s string) (Config, error) {
	c := Config{Nodes: defaultNodes}
	name, list, hasList := strings.Cut(s, ":")
	switch {
	case name == "embedded" && !hasList:
		return c, nil
	case name == "embedded":
	case !hasList && s != "":
		list = s
	default:
		return c, fmt.Errorf("fabric %q: want embedded[:word=value,...]", s)
	}
	seen := map[string]bool{}
	for _, part := range strings.Split(list, ",") {
		word, value, hasValue := strings.Cut(part, "=")
		set := options[word]
		switch {
		case set == nil:
			words := slices.Sorted(maps.Keys(options))
			return c, fmt.Errorf("fabric option %q: unknown, know %s", word, strings.Join(words, ", "))
		case seen[word]:
			return c, fmt.Errorf("fabric option %q: given twice", word)
		case hasValue && value == "":
			return c, fmt.Errorf("fabric option %q: empty value", word)
		}
		seen[word] = true
		if err := set(&c, value); err != nil {
			return c, fmt.Errorf("fabric option %q: %w", part, err)
		}
	}
	if _, err := c.withDefaults(); err != nil {
		return c, fmt.Errorf("fabric %q: %w", s, err)
	}
	return c, nil
}

func intOption(field func(*Config) *int, least, most int) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < least || n > most {
			return fmt.Errorf("want a number from %d to %d", least, most)
		}
		*field(c) = n
		return nil
	}
}

func flagOption(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, value string) error {
		if value != "" {
			return fmt.Errorf("takes no value")
		}
		*field(c) = true
		return nil
	}
}

func topologyOption(c *Config, value string) error {
	i := slices.Index(topologyNames[:], value)
	if i < 0 {
		return fmt.Errorf("want one of %s", strings.Join(topologyNames[:], ", "))
	}
	c.Topology = Topology(i)
	return nil
}

func seedOption(c *Config, value string) (err error) {
	if c.Seed, err = strconv.ParseUint(value, 0, 64); err != nil {
		return fmt.Errorf("want a number of 64 bits")
	}
	return nil
}

func lossOption(c *Config, value string) (err error) {
	if c.Loss, err = strconv.ParseFloat(value, 64); err != nil || !(c.Loss >= 0 && c.Loss <= 1) {
		return fmt.Errorf("want a probability from 0 to 1")
	}
	return nil
}

// delayOption reads one duration or a range.
func delayOption(c *Config, value string) error {
	low, high, ranged := strings.Cut(value, "..")
	if !ranged {
		high = low
	}
	a, err := time.ParseDuration(low)
	b, err2 := time.ParseDuration(high)
	if err != nil || err2 != nil || a < 0 || b < a {
		return fmt.Errorf("want a duration such as 2ms, or a range such as 1ms..5ms")
	}
	c.Delay, c.DelayMax = a, b
	return nil
}

func lmcOption(c *Config, value string) error {
	var n int
	if err := intOption(func(*Config) *int { return &n }, 0, maxLMC)(c, value); err != nil {
		return err
	}
	c.LMC = uint8(n)
	return nil
}

func pkeysOption(c *Config, value string) error {
	var keys []mad.PKey
	for _, s := range strings.Split(value, "+") {
		k, err := strconv.ParseUint(s, 0, 16)
		if err != nil {
			return fmt.Errorf("want P_Keys such as 0xffff+0x8001")
		}
		keys = append(keys, mad.PKey(k))
	}
	if err := checkPKeys(keys); err != nil {
		return err
	}
	c.PKeys = func(int) []mad.PKey { return keys }
	return nil
}

func prefixOption(c *Config, value string) (err error) {
	if c.Prefix, err = strconv.ParseUint(value, 0, 64); err != nil || c.Prefix == 0 {
		return fmt.Errorf("want a subnet prefix such as 0xfec0000000000001")
	}
	return nil
}
