// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"acmd/mad"
	"acmd/mad/transport"
)

// GIDTable reads the GID table of a port of any link layer, in order of indices;
// empty entries are left out. An entry that changes while it is read may be left
// out as well. It reads sysfs (Documentation/ABI/stable/sysfs-class-infiniband)
// and opens no device. Safe for concurrent use.
func (f *Fabric) GIDTable(device string, port uint8) ([]transport.GIDEntry, error) {
	list, err := f.sys.gidTable(device, port)
	if err != nil {
		return nil, fmt.Errorf("GID table of %s port %d: %w", device, port, err)
	}
	return list, nil
}

func (s sysfs) gidTable(device string, port uint8) ([]transport.GIDEntry, error) {
	if device == "" || strings.ContainsAny(device, "/\x00") || device == "." || device == ".." {
		return nil, fmt.Errorf("%q is no device: %w", device, transport.ErrNoPort)
	}
	num := strconv.Itoa(int(port))
	if _, err := s.text("infiniband", device, "ports", num, "state"); err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrNoPort, err)
	}
	layer, err := s.linkLayer(device, port)
	if err != nil {
		return nil, err
	}
	dir := []string{"infiniband", device, "ports", num}
	var list []transport.GIDEntry
	s.table(append(dir, "gids"), func(i int, t string) {
		g, err := mad.ParseGID(t)
		if err != nil || g.GUID() == 0 {
			return
		}
		e := transport.GIDEntry{Index: uint16(i), GID: g}
		if layer != transport.LinkInfiniBand {
			index := strconv.Itoa(i)
			kind, err := s.text(append(dir[:len(dir):len(dir)], "gid_attrs", "types", index)...)
			if e.Type, err = gidType(kind, err); err != nil {
				return // it has gone
			}
			// EINVAL where the entry has no interface.
			e.Interface, _ = s.text(append(dir[:len(dir):len(dir)], "gid_attrs", "ndevs", index)...)
		}
		list = append(list, e)
	})
	slices.SortFunc(list, func(a, b transport.GIDEntry) int { return cmp.Compare(a.Index, b.Index) })
	return list, nil
}

// gidType reads the type of an entry of an Ethernet port. The kernel has one text
// for InfiniBand and RoCE v1.
func gidType(text string, err error) (transport.GIDType, error) {
	switch {
	case err != nil:
		return 0, err
	case text == "IB/RoCE v1":
		return transport.GIDTypeRoCEv1, nil
	case text == "RoCE v2":
		return transport.GIDTypeRoCEv2, nil
	}
	return 0, fmt.Errorf("%q is no type of a GID", text)
}
