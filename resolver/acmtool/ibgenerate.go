// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"acmd/resolver/config"
)

// generate writes the files of -A and -O. It goes on after a failure, so that
// one missing adapter does not keep the options file from being written.
func (a *acme) generate() {
	if a.addrFile == "" && a.optsFile == "" {
		return
	}
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		a.printf("Failed to open directory %s: %s\n", a.dir, strerror(err))
		if a.addrFile != "" {
			a.openFailed("address", err)
		}
		if a.optsFile != "" {
			a.openFailed("option", err)
		}
		return
	}
	if a.addrFile != "" {
		a.generateFile(a.addrFile, "address", func(b *bytes.Buffer) error {
			host, err := a.Hostname()
			if err != nil {
				return fmt.Errorf("host name: %w", err)
			}
			ports, err := ibPorts(a.Sysfs)
			if err != nil {
				return err
			}
			for _, l := range config.GenerateAddrs(host, ports) {
				if a.verbose {
					a.printf("%s %s %d default\n", l.Addr, l.Device, l.Port)
				}
			}
			return config.WriteAddrs(b, host, ports)
		})
	}
	if a.optsFile != "" {
		a.generateFile(a.optsFile, "option", func(b *bytes.Buffer) error {
			return config.WriteOptions(b, a.ConfDir, a.RunDir)
		})
	}
}

// generateFile makes the content first: a failure must not leave an empty file
// behind.
func (a *acme) generateFile(name, kind string, fill func(*bytes.Buffer) error) {
	path := name
	if !filepath.IsAbs(name) {
		path = a.dir + "/" + name
	}
	if a.verbose {
		a.printf("Generating %s\n", path)
	}
	var b bytes.Buffer
	if err := fill(&b); err != nil {
		a.printf("%v\n", err)
		a.fail(-1)
		return
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		a.openFailed(kind, err)
	}
}

func (a *acme) openFailed(kind string, err error) {
	a.printf("Failed to open %s configuration file: %s\n", kind, strerror(err))
	a.fail(-1)
}

// ibPorts lists the ports of all devices that have an InfiniBand port, in the
// order of their names. Ports of another link layer are left out.
func ibPorts(sysfs string) ([]config.Port, error) {
	dir := filepath.Join(sysfs, "class/infiniband")
	devices, err := os.ReadDir(dir) // sorted by name
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var ports []config.Port
	for _, d := range devices {
		entries, err := os.ReadDir(filepath.Join(dir, d.Name(), "ports"))
		if err != nil {
			continue // went away meanwhile
		}
		var nums []uint8
		for _, e := range entries {
			if n, err := strconv.ParseUint(e.Name(), 10, 8); err == nil && n > 0 {
				nums = append(nums, uint8(n))
			}
		}
		slices.SortFunc(nums, func(a, b uint8) int { return cmp.Compare(a, b) })
		for _, n := range nums {
			port := filepath.Join(dir, d.Name(), "ports", strconv.Itoa(int(n)))
			// Kernels before the attribute have InfiniBand only.
			if layer := attr(port, "link_layer"); layer != "" && layer != "InfiniBand" {
				continue
			}
			// "4: ACTIVE"
			state, _, _ := strings.Cut(attr(port, "state"), ":")
			ports = append(ports, config.Port{Device: d.Name(), Port: n, Active: state == "4"})
		}
	}
	if len(ports) == 0 {
		return nil, errors.New("no InfiniBand port in " + dir)
	}
	return ports, nil
}

func attr(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
