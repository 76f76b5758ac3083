// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// readTargets reads lines "kind:addr dgid dlid"; src may be nil.
func readTargets(rd io.Reader, src string) ([]target, error) {
	var list []target
	sc := bufio.NewScanner(rd)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) == 0 || f[0][0] == '#' {
			continue
		}
		if len(f) != 3 {
			return nil, fmt.Errorf("%q: want address, dgid, dlid", sc.Text())
		}
		t, err := newTarget(f[0], f[1], f[2], src)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, sc.Err()
}

func newTarget(addr, dgid, dlid, src string) (t target, err error) {
	t.text = addr
	if t.ep, err = parseEndpoint(addr, true); err != nil {
		return
	}
	if src != "" {
		var s endpoint
		if s, err = parseEndpoint(src, false); err != nil {
			return
		}
		if (s.typ == typePath) != (t.ep.typ == typePath) {
			return t, fmt.Errorf("source %s does not go with destination %s", src, addr)
		}
		t.src = &s
	}
	gid := net.ParseIP(dgid)
	if gid == nil {
		return t, fmt.Errorf("%q is not a GID", dgid)
	}
	t.dgid = [16]byte(gid.To16())
	n, err := strconv.ParseUint(dlid, 0, 16)
	t.dlid = uint16(n)
	return t, err
}
