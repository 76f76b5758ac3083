// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"acmd/mad"
)

// MaxName is the longest name in bytes: the address field of both ACM protocols.
const MaxName = 64

// maxDevice is the kernel's bound on device names (IB_DEVICE_NAME_MAX, with its
// NUL).
const maxDevice = 63

// AddrLine is a line of the address file: a name, or an IP address, of an
// endpoint.
type AddrLine struct {
	Addr   string   // as written; at most MaxName bytes
	Device string   // as written; compare without regard to case
	Port   uint8    // from 1
	PKey   mad.PKey // compare with Matches; 0: entry 0 of the port's table ("default")
	Origin Origin
}

// IsDefault reports whether the line names the first entry of the port's P_Key
// table rather than a key.
func (a *AddrLine) IsDefault() bool { return a.PKey == 0 }

// LoadAddrs reads an address file. A missing one is an error that wraps
// fs.ErrNotExist: the caller then goes by [GenerateAddrs]. Lines that are
// refused are problems; the other lines count.
func LoadAddrs(path string, allowIP bool) ([]AddrLine, []Problem, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("address file: %w", err)
	}
	defer f.Close()
	return ReadAddrs(f, path, allowIP)
}

// ReadAddrs is LoadAddrs on a reader; name stands for the file in messages. IP
// addresses are taken with allowIP (support_ips_in_addr_cfg) only: they come
// from the host's interfaces.
func ReadAddrs(r io.Reader, name string, allowIP bool) ([]AddrLine, []Problem, error) {
	log := Problems{File: name}
	var lines []AddrLine
	seen := map[string]int{}
	err := eachLine(r, &log, func(n int, words []string) {
		a, key, err := parseAddr(words, allowIP)
		if err != nil {
			log.Warn(n, "%v, line ignored", err)
			return
		}
		if first, ok := seen[key]; ok {
			log.Warn(n, "address %s of %s port %d is already in line %d, line ignored", a.Addr, a.Device, a.Port, first)
			return
		}
		if len(words) > 4 {
			log.Warn(n, "address line takes four words, %q ignored", strings.Join(words[4:], " "))
		}
		seen[key] = n
		a.Origin = Origin{File: name, Line: n}
		lines = append(lines, a)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("address file %s: %w", name, err)
	}
	return lines, log.Done(), nil
}

// parseAddr reads the words of a line. key is equal for two spellings of one
// address on one endpoint.
func parseAddr(words []string, allowIP bool) (a AddrLine, key string, err error) {
	if len(words) < 4 {
		return a, "", fmt.Errorf("%d of 4 words (address, device, port, pkey)", len(words))
	}
	a.Addr, a.Device = words[0], words[1]
	id, isIP, err := Identity(a.Addr)
	if err != nil {
		return a, "", err
	}
	if isIP && !allowIP {
		return a, "", fmt.Errorf("IP address %s needs support_ips_in_addr_cfg 1", a.Addr)
	}
	if len(a.Device) > maxDevice {
		return a, "", fmt.Errorf("device name of %d bytes", len(a.Device))
	}
	port, err := parseInt(words[2], 1, 255)
	if err != nil {
		return a, "", fmt.Errorf("port %w", err)
	}
	a.Port = uint8(port)
	if !strings.EqualFold(words[3], "default") {
		if a.PKey, err = parsePKey(words[3]); err != nil {
			return a, "", err
		}
	}
	return a, fmt.Sprintf("%s %s %d %d", id, strings.ToLower(a.Device), a.Port, a.PKey.Number()), nil
}

func parsePKey(v string) (mad.PKey, error) {
	digits := v
	if len(v) > 2 && (v[:2] == "0x" || v[:2] == "0X") {
		digits = v[2:]
	}
	n, err := strconv.ParseUint(digits, 16, 16)
	if err != nil {
		return 0, fmt.Errorf("pkey %q is neither \"default\" nor 16 bits in hex", v)
	}
	if !mad.PKey(n).IsValid() {
		return 0, fmt.Errorf("pkey %q marks an empty table entry", v)
	}
	return mad.PKey(n), nil
}

// Identity returns a text that is equal for all spellings of an address: the
// canonical form of an IP address, the lower-case form of a name. An error says
// why the text is neither.
func Identity(s string) (id string, isIP bool, err error) {
	if ip, perr := netip.ParseAddr(s); perr == nil && ip.Zone() == "" {
		return ip.Unmap().String(), true, nil
	}
	if err := CheckName(s); err != nil {
		return "", false, err
	}
	return foldASCII(s), false, nil
}

// CheckName says what keeps a text that is no IP address from being a name: it
// has over MaxName bytes or bytes that are not printable, or it can only be
// meant as an IP address (digits and dots, a colon).
func CheckName(s string) error {
	if len(s) > MaxName {
		return fmt.Errorf("name of %d bytes, at most %d fit", len(s), MaxName)
	}
	digits, dots := true, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			dots++
		case c == ':':
			if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() != "" {
				return fmt.Errorf("%q: an address cannot have a zone", s)
			}
			return fmt.Errorf("%q is not an IPv6 address", s)
		case c <= ' ' || c == 0x7f:
			return fmt.Errorf("%q is not a name", s)
		case c < '0' || c > '9':
			digits = false
		}
	}
	if len(s) == 0 || digits && dots > 0 {
		return fmt.Errorf("%q is not an IPv4 address", s)
	}
	return nil
}

// foldASCII lower-cases as the wire does: ASCII only.
func foldASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}
