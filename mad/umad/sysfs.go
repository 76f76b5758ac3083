// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"acmd/mad"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// minABI is the oldest umad ABI that is known to work (ib_user_mad.h).
const minABI = 5

// sysfs reads class/infiniband and class/infiniband_mad below a root ("/sys").
type sysfs struct {
	root string
	read func(path string) ([]byte, error) // nil: readAttribute
}

func (s sysfs) path(elem ...string) string {
	return filepath.Join(append([]string{s.root, "class"}, elem...)...)
}

// text reads one attribute, without the newline. Some attributes of empty table
// entries fail with EINVAL; that is the caller's to judge.
func (s sysfs) text(elem ...string) (string, error) {
	read := s.read
	if read == nil {
		read = readAttribute
	}
	b, err := read(s.path(elem...))
	return strings.TrimSpace(string(b)), err
}

// readAttribute reads a file of sysfs with three system calls. A poll reads
// hundreds of them, and package os would add each to the runtime's poller.
func readAttribute(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	// The kernel writes an attribute in one piece; none of ours is longer.
	b := make([]byte, 128)
	n, err := unix.Read(fd, b)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b[:n], nil
}

// number reads an attribute of at most so many bits, see parseNumber.
func (s sysfs) number(bits int, elem ...string) (uint64, error) {
	t, err := s.text(elem...)
	if err != nil {
		return 0, err
	}
	v, err := parseNumber(t, bits)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.path(elem...), err)
	}
	return v, nil
}

// checkABI tells whether umad is there and speaks what this package speaks.
func (s sysfs) checkABI() error {
	v, err := s.number(32, "infiniband_mad", "abi_version")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNoModule
	case err != nil:
		return fmt.Errorf("umad ABI: %w", err)
	case v < minABI:
		return fmt.Errorf("umad ABI version %d, need at least %d", v, minABI)
	}
	return nil
}

// umadName finds the character device of a port: class/infiniband_mad/umadN
// names its device and port in the files ibdev and port.
func (s sysfs) umadName(device string, port uint8) (string, error) {
	entries, err := os.ReadDir(s.path("infiniband_mad"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "umad") {
			continue
		}
		dev, err := s.text("infiniband_mad", e.Name(), "ibdev")
		if err != nil || dev != device {
			continue // it may just be going away
		}
		if p, err := s.number(8, "infiniband_mad", e.Name(), "port"); err == nil && uint8(p) == port {
			return e.Name(), nil
		}
	}
	return "", fmt.Errorf("%s port %d: no umad device: %w", device, port, transport.ErrNoPort)
}

// devices lists every device in name order. A device or port that goes away
// while it is read is left out.
func (s sysfs) devices() ([]transport.Device, error) {
	entries, err := os.ReadDir(s.path("infiniband"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no RDMA at all: normal
	}
	if err != nil {
		return nil, err
	}
	var list []transport.Device
	for _, e := range entries {
		if d, ok := s.device(e.Name()); ok {
			list = append(list, d)
		}
	}
	sort.Slice(list, func(i, j int) bool { return naturalLess(list[i].Name, list[j].Name) })
	return list, nil
}

func (s sysfs) device(name string) (transport.Device, bool) {
	d := transport.Device{Name: name}
	if t, err := s.text("infiniband", name, "node_guid"); err == nil {
		d.NodeGUID = parseGUID(t)
	}
	entries, err := os.ReadDir(s.path("infiniband", name, "ports"))
	if err != nil {
		return d, false
	}
	for _, e := range entries {
		n, err := strconv.ParseUint(e.Name(), 10, 8)
		if err != nil || n == 0 {
			continue
		}
		if p, err := s.port(name, uint8(n)); err == nil {
			d.Ports = append(d.Ports, p)
		}
	}
	sort.Slice(d.Ports, func(i, j int) bool { return d.Ports[i].Num < d.Ports[j].Num })
	return d, len(d.Ports) > 0 // the kernel takes the ports away before the device
}

// port reads one port. Only the state is indispensable: a port of another link
// layer lacks much of the rest.
func (s sysfs) port(device string, num uint8) (transport.PortInfo, error) {
	dir := []string{"infiniband", device, "ports", strconv.Itoa(int(num))}
	at := func(name string) []string { return append(dir[:len(dir):len(dir)], name) }
	p := transport.PortInfo{Num: num}
	state, err := s.number(8, at("state")...)
	if err != nil {
		return p, err
	}
	p.State = mad.State(state)
	if p.LinkLayer, err = s.linkLayer(device, num); err != nil {
		return p, err
	}
	if p.LinkLayer != transport.LinkInfiniBand {
		return p, nil
	}
	num16 := func(name string, bits int) uint64 { v, _ := s.number(bits, at(name)...); return v }
	p.LID = mad.LID(num16("lid", 16))
	p.LMC = uint8(num16("lid_mask_count", 8))
	p.SMLID = mad.LID(num16("sm_lid", 16))
	p.SMSL = uint8(num16("sm_sl", 8))
	p.CapMask = uint32(num16("cap_mask", 32))
	if t, err := s.text(at("rate")...); err == nil {
		p.Rate = parseRate(t)
	}
	s.table(at("gids"), func(i int, t string) {
		for len(p.GIDs) <= i {
			p.GIDs = append(p.GIDs, mad.GID{})
		}
		if g, err := mad.ParseGID(t); err == nil {
			p.GIDs[i] = g
		}
	})
	s.table(at("pkeys"), func(i int, t string) {
		for len(p.PKeys) <= i {
			p.PKeys = append(p.PKeys, 0)
		}
		if v, err := parseNumber(t, 16); err == nil {
			p.PKeys[i] = mad.PKey(v)
		}
	})
	p.GIDs, p.PKeys = trimGIDs(p.GIDs), trimPKeys(p.PKeys)
	// A port that went away meanwhile has lost an unknown part of the above. The kernel
	// makes the state first and takes it away last (drivers/infiniband/core/sysfs.c).
	for _, table := range []string{"gids", "pkeys"} {
		if err := unix.Access(s.path(at(table)...), unix.F_OK); err != nil {
			return p, err
		}
	}
	if _, err := s.text(at("state")...); err != nil {
		return p, err
	}
	return p, nil
}

// linkLayer reads what lies below a port. Kernels before 2.6.37 have no such file.
func (s sysfs) linkLayer(device string, num uint8) (transport.LinkLayer, error) {
	switch t, err := s.text("infiniband", device, "ports", strconv.Itoa(int(num)), "link_layer"); {
	case errors.Is(err, fs.ErrNotExist) || t == "InfiniBand":
		return transport.LinkInfiniBand, nil
	case err != nil:
		return transport.LinkOther, err
	case t == "Ethernet":
		return transport.LinkEthernet, nil
	}
	return transport.LinkOther, nil
}

// maxTable bounds the entries of a GID or P_Key table: both indices have 16 bits.
const maxTable = 1 << 16

// table calls fn for each readable entry of a table directory.
func (s sysfs) table(dir []string, fn func(index int, text string)) {
	entries, err := os.ReadDir(s.path(dir...))
	if err != nil {
		return
	}
	for _, e := range entries {
		i, err := strconv.Atoi(e.Name())
		if err != nil || i < 0 || i >= maxTable {
			continue
		}
		if t, err := s.text(append(dir[:len(dir):len(dir)], e.Name())...); err == nil {
			fn(i, t)
		}
	}
}

// trimGIDs cuts empty entries off the end: tables have up to 1024 of them. An
// empty entry is all zero, or keeps the subnet prefix (mlx5).
func trimGIDs(t []mad.GID) []mad.GID {
	for len(t) > 0 && t[len(t)-1].GUID() == 0 {
		t = t[:len(t)-1]
	}
	return t
}

func trimPKeys(t []mad.PKey) []mad.PKey {
	for len(t) > 0 && !t[len(t)-1].IsValid() {
		t = t[:len(t)-1]
	}
	return t
}
