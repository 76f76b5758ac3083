// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"acmd/mad"
	"acmd/mad/acm"
)

// guidPrefix begins every GUID: a locally administered company identifier, so
// that no real adapter can have the same.
const guidPrefix = 0x02acd0

// A GUID ends with 4 bits of port number; an IPv4 address has the rail in its
// second byte and no .0 or .255 in its last.
const (
	guidPortBits = 4
	hostsPerNet  = 250
)

// NodeName returns the name of a node's first port, "node0007"; further ports
// have the rail behind it, "node0007-2". It is also the name that the simulated
// ACM service answers for.
func NodeName(node int, port uint8) string {
	if port > 1 {
		return fmt.Sprintf("node%04d-%d", node, port)
	}
	return fmt.Sprintf("node%04d", node)
}

// IPv4 returns a port's IPv4 address: 10.64.x.y for the first port, 10.65.x.y
// for the second. It is meant as a /16.
func IPv4(node int, port uint8) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 63 + port, byte(node / hostsPerNet), byte(node%hostsPerNet + 1)})
}

// IPv6 returns a port's IPv6 address: fd00:0:0:<port>::<node+1>.
func IPv6(node int, port uint8) netip.Addr {
	a := [16]byte{0: 0xfd, 7: port}
	binary.BigEndian.PutUint32(a[12:], uint32(node+1))
	return netip.AddrFrom16(a)
}

// guidBase is the node GUID of node 0.
func guidBase(seed uint64) mad.GUID {
	return mad.GUID(guidPrefix<<40 | uint64(uint16(mix(seed)))<<24)
}

// nodeGUID returns the GUID of a node; port GUIDs are it plus the port number.
func (f *Fabric) nodeGUID(node int) mad.GUID { return f.guid0 + mad.GUID(node)<<guidPortBits }

// byGUID is the reverse of the GUID formula: the port's index, or -1.
func (f *Fabric) byGUID(g mad.GUID) int32 {
	d := uint64(g - f.guid0)
	node, port := d>>guidPortBits, d&(1<<guidPortBits-1)
	if node >= uint64(f.cfg.Nodes) || port < 1 || port > uint64(f.cfg.Ports) {
		return -1
	}
	return f.index(int(node), uint8(port))
}

// index numbers all ports, those of node 0 first.
func (f *Fabric) index(node int, port uint8) int32 {
	return int32(node*f.cfg.Ports + int(port) - 1)
}

// owner is the reverse of index.
func (f *Fabric) owner(p int32) (node int, port uint8) {
	return int(p) / f.cfg.Ports, uint8(int(p)%f.cfg.Ports) + 1
}

// byAddress finds the port that owns an ACM address, by the formulas; -1 if none
// does. GIDs and LIDs are not ACM addresses here.
func (f *Fabric) byAddress(typ uint8, a *[acm.AddrSize]byte) int32 {
	switch typ {
	case acm.TypeName:
		return f.byName(a)
	case acm.TypeIPv4:
		return f.checkIndex(int(a[2])*hostsPerNet+int(a[3])-1, a[1]-63,
			func(n int, p uint8) bool { return IPv4(n, p).As4() == [4]byte(a[:4]) })
	case acm.TypeIPv6:
		return f.checkIndex(int(binary.BigEndian.Uint32(a[12:]))-1, a[7],
			func(n int, p uint8) bool { return IPv6(n, p).As16() == [16]byte(a[:16]) })
	}
	return -1
}

// byName compares as the ACM service does: without regard to ASCII case, up to
// the first zero byte.
func (f *Fabric) byName(a *[acm.AddrSize]byte) int32 {
	s := strings.ToLower(string(a[:]))
	if i := strings.IndexByte(s, 0); i >= 0 {
		s = s[:i]
	}
	digits, found := strings.CutPrefix(s, "node")
	if !found {
		return -1
	}
	digits, rail, railed := strings.Cut(digits, "-")
	port := 1
	if railed {
		port, _ = strconv.Atoi(rail) // checkIndex compares the whole name
	}
	node, err := strconv.Atoi(digits)
	if err != nil || port < 1 || port > maxPorts {
		return -1
	}
	return f.checkIndex(node, uint8(port), func(n int, p uint8) bool { return NodeName(n, p) == s })
}

// checkIndex returns the index of a port that exists and of which same holds.
func (f *Fabric) checkIndex(node int, port uint8, same func(int, uint8) bool) int32 {
	if node < 0 || node >= f.cfg.Nodes || port < 1 || int(port) > f.cfg.Ports || !same(node, port) {
		return -1
	}
	return f.index(node, port)
}

// mix is the finaliser of splitmix64: one step from a counter to a value without
// visible pattern.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unit maps a hash to [0, 1).
func unit(h uint64) float64 { return float64(h>>11) / (1 << 53) }
