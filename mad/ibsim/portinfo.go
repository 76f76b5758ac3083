// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"encoding/binary"

	"acmd/mad"
	"acmd/mad/transport"
)

// The attributes are IBTA vol. 1, 14.2.5.3 (NodeInfo) and 14.2.5.6 (PortInfo),
// big endian.

const (
	nodeTypeCA = 1
	pkeyCount  = 32
)

// nodeInfo is what is used of NodeInfo.
type nodeInfo struct {
	nodeType uint8
	nodeGUID mad.GUID
}

func parseNodeInfo(d *controlData) nodeInfo {
	return nodeInfo{nodeType: d[2], nodeGUID: mad.GUID(binary.BigEndian.Uint64(d[12:]))}
}

// portGUID is what the fabric knows the port by. The PortGUID of the simulator's
// NodeInfo is the node's; an adapter's ports count up from there.
func (n *nodeInfo) portGUID(localPort uint8) mad.GUID {
	if n.nodeType == nodeTypeCA {
		return n.nodeGUID + mad.GUID(localPort)
	}
	return n.nodeGUID
}

// parsePortInfo decodes PortInfo and the P_Key table into a snapshot of port 1.
func parsePortInfo(n nodeInfo, d, keys *controlData) transport.PortInfo {
	be := binary.BigEndian
	prefix := be.Uint64(d[8:])
	if prefix == 0 {
		prefix = mad.DefaultPrefix // not configured by a subnet manager yet
	}
	p := transport.PortInfo{
		Num:           portNumber,
		LinkLayer:     transport.LinkInfiniBand,
		State:         mad.State(d[32] & 0xf),
		LID:           mad.LID(be.Uint16(d[16:])),
		LMC:           d[34] & 7,
		SMLID:         mad.LID(be.Uint16(d[18:])),
		SMSL:          d[36] & 0xf,
		CapMask:       be.Uint32(d[20:]),
		MTU:           mad.MTU(d[36] >> 4),
		Rate:          linkRate(d[31], d[35]>>4, d[62]>>4),
		SubnetTimeout: d[51] & 0x1f,
		GIDs:          []mad.GID{mad.MakeGID(prefix, n.portGUID(d[28]))},
		PKeys:         make([]mad.PKey, pkeyCount),
	}
	for i := range p.PKeys {
		p.PKeys[i] = mad.PKey(be.Uint16(keys[2*i:]))
	}
	return p
}

// linkRate combines the active link width, speed and extended speed, each a field with
// one bit set. The bits of the extended speed continue those of the speed, of which the
// fourth is nobody's here. 0 when one of them is not known.
func linkRate(width, speed, ext uint8) mad.Rate {
	if ext != 0 {
		return mad.LinkRate(width, uint16(ext)<<4)
	}
	return mad.LinkRate(width, uint16(speed&7))
}
