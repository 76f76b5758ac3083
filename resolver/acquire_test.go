// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// Devices of the cases: mlx5_0 has two InfiniBand ports, the first with an alias
// GID, a hole and two partitions, mlx5_1 one with limited membership, mlx5_2 a RoCE
// port, cx_0 an iWARP port.
func acquireLab(t *testing.T) (*lab, *acquireTables) {
	tables := &acquireTables{}
	p1 := port(1, 5)
	p1.GIDs = []mad.GID{gidOf(5), mad.MakeGID(prefix, 0), gidOf(0x55)}
	p1.PKeys = []mad.PKey{0xffff, 0, 0x8012}
	p2 := port(2, 6)
	p2.LMC = 1
	p3 := port(1, 9)
	p3.PKeys = []mad.PKey{0x7fff}
	roce := transport.PortInfo{Num: 1, LinkLayer: transport.LinkEthernet, State: mad.PortActive}
	iwarp := transport.PortInfo{Num: 1, LinkLayer: transport.LinkOther, State: mad.PortActive}
	l := newLab(t, func(l *lab, c *Config) {
		l.fab.devs = []transport.Device{device("mlx5_0", p1, p2), device("mlx5_1", p3), device("mlx5_2", roce), device("cx_0", iwarp)}
		l.host.addrs = []HostAddr{
			{IP: netip.MustParseAddr("10.0.0.5"), Ifname: "ib0", GID: gidOf(5), PKey: 0xffff},
			{IP: netip.MustParseAddr("10.1.0.5"), Ifname: "ib0.8012", GID: gidOf(5), PKey: 0x8012},
			{IP: netip.MustParseAddr("10.0.0.55"), Ifname: "ib0v", GID: gidOf(0x55), PKey: 0xffff},
			{IP: netip.MustParseAddr("2001:db8::6"), Ifname: "ib1", Device: "mlx5_0", Port: 2, PKey: 0xffff},
			{IP: netip.MustParseAddr("10.0.0.9"), Ifname: "ib2", GID: gidOf(9), PKey: 0x7fff},
		}
		c.GIDTable = tables.read
		c.Addresses = []AddressEntry{{Addr: NameAddr("node-a"), Text: "node-a", Device: "mlx5_0", Port: 1, Default: true}}
	})
	return l, tables
}

// acquireTables are the GID tables as the kernel has them now.
type acquireTables struct {
	gone  mad.GID // has left its table since the engine's last look
	err   error
	reads int
}

// v4 is an IP address in the form of a RoCE GID.
func v4(s string) mad.GID { return netip.MustParseAddr(s).As16() }

func (a *acquireTables) read(device string, port uint8) (list []transport.GIDEntry, err error) {
	a.reads++
	switch device {
	case "mlx5_0":
		if port == 2 {
			list = []transport.GIDEntry{{Index: 0, GID: gidOf(6)}}
			break
		}
		list = []transport.GIDEntry{{Index: 0, GID: gidOf(5)}, {Index: 2, GID: gidOf(0x55)}}
	case "mlx5_1":
		list = []transport.GIDEntry{{Index: 0, GID: gidOf(9)}}
	case "mlx5_2":
		mac := netip.MustParseAddr("fe80::200:ff:fe00:1").As16()
		for i, g := range []mad.GID{mac, v4("192.168.1.2"), v4("2001:db8:1::2")} {
			list = append(list, transport.GIDEntry{Index: uint16(2 * i), GID: g, Type: transport.GIDTypeRoCEv1, Interface: "eth2"},
				transport.GIDEntry{Index: uint16(2*i + 1), GID: g, Type: transport.GIDTypeRoCEv2, Interface: "eth2"})
		}
		list = append(list, transport.GIDEntry{Index: 6, GID: v4("172.16.0.2"), Type: transport.GIDTypeRoCEv1, Interface: "eth2.7"})
	default:
		return nil, errors.New("no table")
	}
	return slices.DeleteFunc(list, func(e transport.GIDEntry) bool { return e.GID == a.gone }), a.err
}

// pathFrom is a path from a port of ours to some other one.
func pathFrom(g mad.GID, lid mad.LID, key mad.PKey) (p sa.PathRecord) {
	p.SetSGID(g)
	p.SetSLID(lid)
	p.SetPKey(key)
	p.SetDGID(gidOf(0x99))
	p.SetDLID(0x99)
	return p
}

func entryOf(index uint16, g mad.GID, typ transport.GIDType, ifname string) transport.GIDEntry {
	return transport.GIDEntry{Index: index, GID: g, Type: typ, Interface: ifname}
}

func TestAcquire(t *testing.T) {
	const ipoib = 0x0000000001020007
	ib := func(index uint16, g mad.GID, ifname string) transport.GIDEntry {
		return entryOf(index, g, transport.GIDTypeIB, ifname)
	}
	for _, c := range []struct {
		name string
		req  AcquireRequest
		gone mad.GID
		want Acquired
		err  error
		says string
	}{
		{name: "no listener, no source", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff)},
			want: Acquired{"mlx5_0", 1, ib(0, gidOf(5), "ib0")}},
		{name: "IPv4 source", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff), Source: ip("10.0.0.5")},
			want: Acquired{"mlx5_0", 1, ib(0, gidOf(5), "ib0")}},
		{name: "source of a child interface", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0x8012), Source: ip("10.1.0.5")},
			want: Acquired{"mlx5_0", 1, ib(0, gidOf(5), "ib0.8012")}},
		{name: "interface by partition", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0x8012)},
			want: Acquired{"mlx5_0", 1, ib(0, gidOf(5), "ib0.8012")}},
		{name: "name of the address file", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff), Source: NameAddr("Node-A")},
			want: Acquired{"mlx5_0", 1, ib(0, gidOf(5), "ib0")}},
		{name: "second port, found by its LID", req: AcquireRequest{Path: pathFrom(mad.GID{}, 7, 0xffff), Source: ip("2001:db8::6")},
			want: Acquired{"mlx5_0", 2, ib(0, gidOf(6), "ib1")}},
		{name: "bound to the device", req: AcquireRequest{Listener: Listener{"mlx5_0", 0}, Path: pathFrom(gidOf(6), 6, 0xffff)},
			want: Acquired{"mlx5_0", 2, ib(0, gidOf(6), "ib1")}},
		{name: "bound to the port", req: AcquireRequest{Listener: Listener{"mlx5_0", 2}, Path: pathFrom(gidOf(6), 6, 0xffff)},
			want: Acquired{"mlx5_0", 2, ib(0, gidOf(6), "ib1")}},
		{name: "incoming", req: AcquireRequest{Listener: Listener{"mlx5_0", 1}, Incoming: true, Path: turned(pathFrom(gidOf(5), 5, 0xffff)), Source: ip("10.0.0.5"), Service: ipoib},
			want: Acquired{"mlx5_0", 1, ib(0, gidOf(5), "ib0")}},
		{name: "alias GID in the path", req: AcquireRequest{Path: pathFrom(gidOf(0x55), 5, 0xffff), Source: ip("10.0.0.55")},
			want: Acquired{"mlx5_0", 1, ib(2, gidOf(0x55), "ib0v")}},
		{name: "alias GID of the source only", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff), Source: ip("10.0.0.55")},
			want: Acquired{"mlx5_0", 1, ib(2, gidOf(0x55), "ib0v")}},
		{name: "alias GID as source", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff), Source: GIDAddr(gidOf(0x55))},
			want: Acquired{"mlx5_0", 1, ib(2, gidOf(0x55), "ib0v")}},
		{name: "limited P_Key in the path", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0x7fff)},
			want: Acquired{"mlx5_0", 1, ib(0, gidOf(5), "ib0")}},
		{name: "limited P_Key of the port", req: AcquireRequest{Path: pathFrom(gidOf(9), 9, 0xffff), Source: ip("10.0.0.9")},
			want: Acquired{"mlx5_1", 1, ib(0, gidOf(9), "ib2")}},
		{name: "limited P_Key of both", req: AcquireRequest{Path: pathFrom(gidOf(9), 9, 0x7fff)},
			want: Acquired{"mlx5_1", 1, ib(0, gidOf(9), "ib2")}},
		{name: "no P_Key", req: AcquireRequest{Path: pathFrom(gidOf(9), 9, 0)},
			want: Acquired{"mlx5_1", 1, ib(0, gidOf(9), "ib2")}},
		{name: "RoCE, IPv4", req: AcquireRequest{Path: pathFrom(v4("192.168.1.2"), 0, 0xffff), Source: ip("192.168.1.2")},
			want: Acquired{"mlx5_2", 1, entryOf(3, v4("192.168.1.2"), transport.GIDTypeRoCEv2, "eth2")}},
		{name: "RoCE, IPv6, bound", req: AcquireRequest{Listener: Listener{"mlx5_2", 1}, Path: pathFrom(v4("2001:db8:1::2"), 0, 0), Source: ip("2001:db8:1::2")},
			want: Acquired{"mlx5_2", 1, entryOf(5, v4("2001:db8:1::2"), transport.GIDTypeRoCEv2, "eth2")}},
		{name: "RoCE v1 on a VLAN", req: AcquireRequest{Path: pathFrom(v4("172.16.0.2"), 0, 0xffff)},
			want: Acquired{"mlx5_2", 1, entryOf(6, v4("172.16.0.2"), transport.GIDTypeRoCEv1, "eth2.7")}},
		{name: "RoCE, source of another interface", req: AcquireRequest{Path: pathFrom(v4("192.168.1.2"), 0, 0xffff), Source: ip("172.16.0.2")},
			want: Acquired{"mlx5_2", 1, entryOf(6, v4("172.16.0.2"), transport.GIDTypeRoCEv1, "eth2.7")}},

		{name: "bound to a device that is not there", req: AcquireRequest{Listener: Listener{"mlx5_7", 0}, Path: pathFrom(gidOf(5), 5, 0xffff)},
			err: ErrNoDevice, says: "no device: the listener is bound to mlx5_7, which is not there"},
		{name: "bound to another device", req: AcquireRequest{Listener: Listener{"mlx5_1", 0}, Path: pathFrom(gidOf(5), 5, 0xffff)},
			err: ErrNoDevice, says: "no device: the listener is bound to mlx5_1, GID fe80::5 is of mlx5_0/1"},
		{name: "bound to a RoCE device", req: AcquireRequest{Listener: Listener{"mlx5_2", 1}, Path: pathFrom(gidOf(5), 5, 0xffff)},
			err: ErrNoDevice, says: "no device: the listener is bound to mlx5_2/1, GID fe80::5 is of mlx5_0/1"},
		{name: "bound to another port", req: AcquireRequest{Listener: Listener{"mlx5_0", 2}, Path: pathFrom(gidOf(5), 5, 0xffff)},
			err: ErrNoPort, says: "no port: the listener is bound to mlx5_0/2, GID fe80::5 is of mlx5_0/1"},
		{name: "bound to a port that is not there", req: AcquireRequest{Listener: Listener{"mlx5_0", 3}, Path: pathFrom(gidOf(5), 5, 0xffff)},
			err: ErrNoPort, says: "no port: the listener is bound to mlx5_0/3, which is not there"},
		{name: "partition of another port", req: AcquireRequest{Path: pathFrom(gidOf(6), 6, 0x8012)},
			err: ErrNoPort, says: "no port: mlx5_0/2 is not in partition 0x8012"},
		{name: "partition on RoCE", req: AcquireRequest{Path: pathFrom(v4("192.168.1.2"), 0, 0x8012)},
			err: ErrNoPort, says: "no port: mlx5_2/1 is not in partition 0x8012"},
		{name: "nobody's GID and LID", req: AcquireRequest{Path: pathFrom(gidOf(77), 77, 0xffff)},
			err: ErrNoPort, says: "no port: GID fe80::4d is of none here"},
		{name: "empty path", req: AcquireRequest{}, err: ErrNoPort, says: "no port: LID 0 is of none here"},
		{name: "the peer's end", req: AcquireRequest{Incoming: true, Path: pathFrom(gidOf(5), 5, 0xffff)},
			err: ErrNoPort, says: "no port: GID fe80::99 is of none here"},
		{name: "IPoIB service on RoCE", req: AcquireRequest{Path: pathFrom(v4("192.168.1.2"), 0, 0xffff), Service: ipoib},
			err: ErrNoPort, says: "no port: service 0x0000000001020007 is of IPoIB, mlx5_2/1 is no InfiniBand port"},
		{name: "source of another port", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff), Source: ip("10.0.0.9")},
			err: ErrNoGID, says: "no GID entry: 10.0.0.9 is no address of mlx5_0/1"},
		{name: "name of another port", req: AcquireRequest{Path: pathFrom(gidOf(6), 6, 0xffff), Source: NameAddr("node-a")},
			err: ErrNoGID, says: "no GID entry: node-a is no address of mlx5_0/2"},
		{name: "source of nobody", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff), Source: ip("10.9.9.9")},
			err: ErrNoGID, says: "no GID entry: 10.9.9.9 is no address of mlx5_0/1"},
		{name: "source GID of another port", req: AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff), Source: GIDAddr(gidOf(6))},
			err: ErrNoGID, says: "no GID entry: fe80::6 is not in the table of mlx5_0/1"},
		{name: "GID gone since the last look", req: AcquireRequest{Path: pathFrom(gidOf(0x55), 5, 0xffff), Source: ip("10.0.0.55")}, gone: gidOf(0x55),
			err: ErrNoGID, says: "no GID entry: fe80::55 is not in the table of mlx5_0/1"},
		{name: "GID gone for long", req: AcquireRequest{Path: pathFrom(gidOf(0x56), 5, 0xffff)},
			err: ErrNoGID, says: "no GID entry: fe80::56 is not in the table of mlx5_0/1"},
		{name: "RoCE, address gone", req: AcquireRequest{Path: pathFrom(v4("192.168.1.2"), 0, 0xffff), Source: ip("192.168.1.3")},
			err: ErrNoGID, says: "no GID entry: ::ffff:192.168.1.3 is not in the table of mlx5_2/1"},
		{name: "RoCE, name", req: AcquireRequest{Path: pathFrom(v4("192.168.1.2"), 0, 0xffff), Source: NameAddr("node-a")},
			err: ErrNoGID, says: "no GID entry: node-a is no address of mlx5_2/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, tables := acquireLab(t)
			tables.gone = c.gone
			got, err := l.e.Acquire(&c.req)
			if got != c.want || !errors.Is(err, c.err) || err != nil && err.Error() != c.says {
				t.Errorf("got  %+v, %v\nwant %+v, %v", got, err, c.want, c.says)
			}
			for _, other := range []error{ErrNoDevice, ErrNoPort, ErrNoGID} {
				if other != c.err && errors.Is(err, other) {
					t.Errorf("%v is two errors at once", err)
				}
			}
		})
	}
}

// turned is a path in the other direction.
func turned(p sa.PathRecord) (r sa.PathRecord) {
	r = p
	r.SetDGID(p.SGID())
	r.SetSGID(p.DGID())
	r.SetDLID(p.SLID())
	r.SetSLID(p.DLID())
	return r
}

func TestAcquireNoDevice(t *testing.T) {
	l := newLab(t, func(l *lab, _ *Config) { l.fab.devs = nil })
	_, err := l.e.Acquire(&AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff)})
	if !errors.Is(err, ErrNoDevice) || err.Error() != "no device: there is no RDMA device here" {
		t.Error(err)
	}
}

// Only the table of the port is read, and once; those of Ethernet ports only where
// no InfiniBand port has the GID. A table that cannot be read is no entry; without a reader the fabric's GIDs are
// the table.
func TestAcquireTable(t *testing.T) {
	l, tables := acquireLab(t)
	tables.err = errors.New("input/output error")
	req := AcquireRequest{Path: pathFrom(gidOf(5), 5, 0xffff)}
	if _, err := l.e.Acquire(&req); !errors.Is(err, ErrNoGID) || !strings.Contains(err.Error(), "cannot be read: input/output error") {
		t.Error(err)
	}
	if tables.reads != 1 {
		t.Errorf("%d tables were read", tables.reads)
	}
	tables.reads, tables.err = 0, nil
	roce := AcquireRequest{Path: pathFrom(v4("192.168.1.2"), 0, 0xffff)}
	if got, err := l.e.Acquire(&roce); err != nil || got.Device != "mlx5_2" || tables.reads != 1 {
		t.Errorf("%+v, %v: %d tables were read", got, err, tables.reads)
	}
	plain := newLab(t, nil)
	got, err := plain.e.Acquire(&req)
	if want := (Acquired{"mlx5_0", 1, entryOf(0, gidOf(5), transport.GIDTypeIB, "ib0")}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}
