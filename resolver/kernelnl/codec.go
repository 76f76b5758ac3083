// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package kernelnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
)

// Numbers of include/uapi/rdma/rdma_netlink.h. A message type is
// client<<10 | operation.
const (
	clientLS = 4
	groupLS  = 3

	typeResolve    = clientLS<<10 | 0
	typeSetTimeout = clientLS<<10 | 1
	typeIPResolve  = clientLS<<10 | 2

	flagErr = 0x100 // RDMA_NL_LS_F_ERR

	attrPathRecord = 1
	attrTimeout    = 2
	attrServiceID  = 3
	attrDGID       = 4
	attrSGID       = 5
	attrTClass     = 6
	attrPKey       = 7
	attrQoSClass   = 8
	attrIPv4       = 9
	attrIPv6       = 10
	attrMandatory  = 0x2000
)

// Lengths in bytes of the fixed parts.
const (
	headerLen     = 16 // struct nlmsghdr
	resolveHdrLen = 68 // struct rdma_ls_resolve_header: device_name[64], port_num, path_use, 2 of padding
	ipHdrLen      = 4  // struct rdma_ls_ip_resolve_header: ifindex
	attrHdrLen    = 4  // struct nlattr
	deviceLen     = 64
)

// recordFlags marks a record as GMP, primary, outbound and inbound-reverse
// (enum ib_path_flags, include/uapi/rdma/ib_user_sa.h): what the kernel looks for
// with each path_use. Without GMP its connection manager takes an empty path.
const recordFlags = 0x2b

// Header is a netlink message header in host order (struct nlmsghdr).
type Header struct {
	Len   uint32
	Type  uint16
	Flags uint16
	Seq   uint32
	PID   uint32
}

// Request is a question of the kernel. Exactly one of Path and IP is asked for.
type Request struct {
	Header
	// Of RESOLVE: the port that will send, and what the path has to be like; what
	// is zero is not constrained. Use is 0 for a reversible path, 1 for one in
	// one direction, 2 for MADs.
	Device [deviceLen]byte
	Port   uint8
	Use    uint8
	Path   sa.PathRecord
	// Of IP_RESOLVE: the interface towards the gateway, and the address behind it
	// whose GID is wanted.
	Ifindex int32
	IP      resolver.Addr
}

// IsIP tells IP_RESOLVE from RESOLVE.
func (r *Request) IsIP() bool { return r.Type == typeIPResolve }

var (
	// ErrUnknown: another client of NETLINK_RDMA, or an operation that there was
	// not when this was written.
	ErrUnknown = errors.New("not an operation of the local service")
	// ErrMalformed is wrapped with what is wrong.
	ErrMalformed = errors.New("malformed message")
)

func malformed(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, a...)...)
}

// Split takes the first message off a datagram: its header, what follows it, and
// the messages behind it. An error means that the rest cannot be read either.
func Split(b []byte) (h Header, body, rest []byte, err error) {
	if len(b) < headerLen {
		return h, nil, nil, malformed("%d bytes, shorter than a header", len(b))
	}
	ne := binary.NativeEndian
	h = Header{ne.Uint32(b), ne.Uint16(b[4:]), ne.Uint16(b[6:]), ne.Uint32(b[8:]), ne.Uint32(b[12:])}
	if h.Len < headerLen || uint64(h.Len) > uint64(len(b)) {
		return h, nil, nil, malformed("length %d in %d bytes", h.Len, len(b))
	}
	end := min(align(int(h.Len)), len(b))
	return h, b[headerLen:h.Len], b[end:], nil
}

// Decode reads a request whose header was split off. The result holds nothing of
// body. ErrUnknown and errors that wrap ErrMalformed leave r.Header valid.
func Decode(h Header, body []byte, r *Request) error {
	*r = Request{Header: h}
	switch h.Type {
	case typeResolve:
		if len(body) < resolveHdrLen {
			return malformed("RESOLVE of %d bytes", len(body))
		}
		copy(r.Device[:], body)
		r.Port, r.Use = body[deviceLen], body[deviceLen+1]
		if err := eachAttr(body[resolveHdrLen:], r.pathAttr); err != nil {
			return err
		}
		if r.Path.DGID().IsZero() {
			return malformed("RESOLVE without a DGID")
		}
	case typeIPResolve:
		if len(body) < ipHdrLen {
			return malformed("IP_RESOLVE of %d bytes", len(body))
		}
		r.Ifindex = int32(binary.NativeEndian.Uint32(body))
		if err := eachAttr(body[ipHdrLen:], r.ipAttr); err != nil {
			return err
		}
		if r.IP.IsZero() {
			return malformed("IP_RESOLVE without an address")
		}
	default:
		return ErrUnknown
	}
	return nil
}

// eachAttr walks attributes; take says whether it knows one. One that is not
// known may be left out unless it is marked as mandatory.
func eachAttr(b []byte, take func(typ uint16, data []byte) (known bool, err error)) error {
	for len(b) > 0 {
		if len(b) < attrHdrLen {
			return malformed("%d bytes behind the attributes", len(b))
		}
		n, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if n < attrHdrLen || n > len(b) {
			return malformed("attribute of length %d in %d bytes", n, len(b))
		}
		known, err := take(typ&^attrMandatory, b[attrHdrLen:n])
		switch {
		case err != nil:
			return err
		case !known && typ&attrMandatory != 0:
			return malformed("mandatory attribute %d is not known", typ&^attrMandatory)
		}
		b = b[min(align(n), len(b)):]
	}
	return nil
}

// pathAttr takes an attribute of RESOLVE. Numbers come in host order.
func (r *Request) pathAttr(typ uint16, data []byte) (bool, error) {
	ne := binary.NativeEndian
	switch typ {
	case attrServiceID:
		if len(data) != 8 {
			return true, badLength(typ, data)
		}
		r.Path.SetServiceID(ne.Uint64(data))
	case attrDGID, attrSGID:
		if len(data) != len(mad.GID{}) {
			return true, badLength(typ, data)
		}
		if typ == attrDGID {
			r.Path.SetDGID(mad.GID(data))
		} else {
			r.Path.SetSGID(mad.GID(data))
		}
	case attrTClass:
		if len(data) != 1 {
			return true, badLength(typ, data)
		}
		r.Path.SetTClass(data[0])
	case attrPKey, attrQoSClass:
		if len(data) != 2 {
			return true, badLength(typ, data)
		}
		if typ == attrPKey {
			r.Path.SetPKey(mad.PKey(ne.Uint16(data)))
		} else {
			r.Path.SetQoSClassSL(ne.Uint16(data)&0xfff, 0) // the kernel puts 12 bits of it into a query
		}
	default:
		return false, nil
	}
	return true, nil
}

// ipAttr takes an attribute of IP_RESOLVE.
func (r *Request) ipAttr(typ uint16, data []byte) (bool, error) {
	if typ != attrIPv4 && typ != attrIPv6 {
		return false, nil
	}
	ip, ok := netip.AddrFromSlice(data)
	if !ok || ip.Is4() != (typ == attrIPv4) {
		return true, badLength(typ, data)
	}
	r.IP = resolver.IPAddr(ip)
	return true, nil
}

func badLength(typ uint16, data []byte) error {
	return malformed("attribute %d has %d bytes", typ, len(data))
}

// align rounds up to the alignment of messages and attributes.
func align(n int) int { return (n + 3) &^ 3 }
