// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/transport"
)

func keysOf(eps []*Endpoint) (out []string) {
	for _, ep := range eps {
		out = append(out, ep.label())
	}
	return out
}

// field cases 15, 16: holes are skipped, one endpoint per partition, the first
// entry is the default of the address file.
func TestPartitions(t *testing.T) {
	tests := []struct {
		table []mad.PKey
		want  []mad.PKey
		index []uint16
	}{
		{[]mad.PKey{0x7fff, 0, 0x8001, 0x8000, 0, 0x0123}, []mad.PKey{0x7fff, 0x8001, 0x0123}, []uint16{0, 2, 5}},
		{[]mad.PKey{0x8001, 0x7fff, 0x8002}, []mad.PKey{0x8001, 0x7fff, 0x8002}, []uint16{0, 1, 2}},
		{[]mad.PKey{0x0123, 0x8123, 0xffff, 0x7fff}, []mad.PKey{0x0123, 0xffff}, []uint16{0, 2}},
		{[]mad.PKey{0, 0x8000}, nil, nil},
		{nil, nil, nil},
	}
	for _, tt := range tests {
		keys, index := partitions(tt.table)
		if !slices.Equal(keys, tt.want) || !slices.Equal(index, tt.index) {
			t.Errorf("partitions(%v) = %v, %v", tt.table, keys, index)
		}
	}
}

// field case 15: "default" binds to the first entry of the table. field case 5:
// partitions match without the membership bit, the table's value is shown.
func TestEndpointAddresses(t *testing.T) {
	bubble(t, func(l *lab, c *Config) {
		p := port(1, 5)
		p.PKeys = []mad.PKey{0x8001, 0x7fff, 0x8002, 0, 0x0123}
		l.fab.devs = []transport.Device{device("mlx5_0", p)}
		l.host.addrs = []HostAddr{
			{IP: netip.MustParseAddr("10.1.0.5"), GID: gidOf(5), PKey: 0x8123},
			{IP: netip.MustParseAddr("10.1.0.6"), GID: gidOf(99), PKey: 0x8123},                  // no port of ours
			{IP: netip.MustParseAddr("10.1.0.7"), Device: "mlx5_0", Port: 1, PKey: 0xffff},       // no GID to show
			{IP: netip.MustParseAddr("10.1.0.5"), GID: gidOf(5), PKey: 0x8002, Ifname: "second"}, // taken
		}
		c.Addresses = append(c.Addresses, AddressEntry{Addr: NameAddr("x"), Text: "x", Device: "mlx5_0", Port: 1, PKey: 0xffff})
	}, func(t *testing.T, l *lab) {
		want := map[mad.PKey][]string{0x8001: {"Node1"}, 0x7fff: {"10.1.0.7", "x"}, 0x8002: {"10.1.0.5"}, 0x0123: {"10.1.0.5"}}
		for _, ep := range l.e.Endpoints() {
			var got []string
			for _, a := range ep.Addrs {
				got = append(got, a.Text)
			}
			if !slices.Equal(got, want[ep.PKey]) {
				t.Errorf("%s has %v, want %v", ep.label(), got, want[ep.PKey])
			}
		}
		src := ip("10.1.0.5")
		if ep := l.e.BySource(&src); ep == nil || ep.PKey != 0x8002 { // table order decides
			t.Errorf("10.1.0.5 belongs to %v", ep)
		}
	})
}

// B-15, B-16, field case 61: which endpoint a path request gets.
func TestPathEndpoint(t *testing.T) {
	other := uint64(0xfec0000000000001)
	a1, a2, b1 := port(1, 8), port(2, 16), port(1, 32)
	a1.LMC = 2
	a1.PKeys = []mad.PKey{0x8001, 0xffff}
	a2.PKeys = []mad.PKey{0x8002, 0x8003}
	b1.GIDs = []mad.GID{mad.MakeGID(other, 32), {}, gidOf(0), mad.MakeGID(other, 33)}
	bubble(t, func(l *lab, _ *Config) {
		l.fab.devs = []transport.Device{device("a", a1, a2), device("b", b1)}
		l.host.addrs = nil // endpoints without an address serve path requests too
	}, func(t *testing.T, l *lab) {
		if got, want := keysOf(l.e.Endpoints()), []string{"a/1/0x8001", "a/1/0xffff", "a/2/0x8002", "a/2/0x8003", "b/1/0xffff"}; !slices.Equal(got, want) {
			t.Fatalf("endpoints %v, want %v", got, want)
		}
		tests := []struct {
			name       string
			sgid, dgid mad.GID
			slid       mad.LID
			pkey       mad.PKey
			want       string
		}{
			{"nothing given: default partition of the first port", mad.GID{}, mad.GID{}, 0, 0, "a/1/0xffff"},
			{"P_Key of a later port", mad.GID{}, mad.GID{}, 0, 0x0003, "a/2/0x8003"},
			{"P_Key nowhere", mad.GID{}, mad.GID{}, 0, 0x8009, ""},
			{"source GID", gidOf(16), mad.GID{}, 0, 0, "a/2/0x8002"},
			{"source GID, partition elsewhere", gidOf(16), mad.GID{}, 0, 0x8001, ""},
			{"foreign source GID", gidOf(77), gidOf(8), 0, 0, ""},
			{"second GID of the table behind holes", mad.MakeGID(other, 33), mad.GID{}, 0, 0, "b/1/0xffff"},
			{"source LID in the LMC range", mad.GID{}, mad.GID{}, 11, 0, "a/1/0xffff"},
			{"source LID beyond it", mad.GID{}, mad.GID{}, 12, 0, ""},
			{"subnet prefix of the destination", mad.GID{}, mad.MakeGID(other, 99), 0, 0, "b/1/0xffff"},
			{"unknown subnet prefix", mad.GID{}, mad.MakeGID(7, 99), 0, 0, ""},
			{"GID wins over LID", gidOf(16), mad.GID{}, 11, 0, "a/2/0x8002"},
		}
		for _, tt := range tests {
			got := ""
			if ev := l.e.topo.Load().forPath(tt.sgid, tt.slid, tt.dgid, tt.pkey); ev != nil {
				got = ev.ep.label()
			}
			if got != tt.want {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			}
		}
		// field case 61: without a source the port of the destination's prefix.
		l.sa.lids[mad.MakeGID(other, 99)] = 99
		if a := l.want(byGID(mad.MakeGID(other, 99)), StatusSuccess); a.Path.SGID() != mad.MakeGID(other, 32) {
			t.Errorf("source GID %v", a.Path.SGID())
		}
		l.want(byGID(mad.MakeGID(7, 99)), StatusSrcAddr)
	})
}

// field case 20: no device at all, then an Ethernet port, then InfiniBand: said
// once, answered status 5, served without a restart. field case 22: without any
// event.
func TestNoPortYet(t *testing.T) {
	eth := transport.PortInfo{Num: 1, LinkLayer: transport.LinkEthernet, State: mad.PortActive, GIDs: []mad.GID{gidOf(1)}, PKeys: []mad.PKey{0xffff}}
	bubble(t, func(l *lab, _ *Config) { l.fab.devs = nil }, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		for _, devs := range [][]transport.Device{nil, {device("mlx5_1", eth)}} {
			l.fab.set(devs...)
			time.Sleep(5 * time.Second)
			for _, q := range []Query{byIP("10.0.0.1", "10.0.0.9"), byIP("", "10.0.0.9"), byGID(gidOf(9)), {Kind: AskSA}} {
				if a := l.want(q, StatusNotConn); !a.Core {
					t.Errorf("%+v is not marked", a)
				}
			}
		}
		if len(l.sa.open) != 0 {
			t.Errorf("opened %v", l.sa.open)
		}
		n := 0
		for _, line := range l.log.lines() {
			if strings.Contains(line, "no InfiniBand port yet") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("said %d times that there is no port", n)
		}
		l.fab.set(device("mlx5_1", eth), device("mlx5_0", port(1, 5)))
		time.Sleep(2 * time.Second)
		l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess)
	})
}

// field case 21: one InfiniBand and one Ethernet port, a provider rule, events
// for both and for a port that does not exist.
func TestMixedDevice(t *testing.T) {
	eth := transport.PortInfo{Num: 2, LinkLayer: transport.LinkEthernet, State: mad.PortActive, PKeys: []mad.PKey{0xffff}}
	bubble(t, func(l *lab, c *Config) {
		l.fab.devs = []transport.Device{device("mlx5_0", port(1, 5), eth)}
		c.ProviderRules = []ProviderRule{{Name: "ibacmp", Prefix: prefix}}
	}, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		for _, n := range []uint8{2, 3, 0} {
			for _, typ := range []transport.EventType{transport.EventPortActive, transport.EventGIDChange, transport.EventPortError, transport.EventReregister} {
				l.event(typ, "mlx5_0", n)
			}
		}
		time.Sleep(3 * time.Second)
		l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess)
		if len(l.sa.open) != 1 || l.sa.opened("mlx5_0/1") != 1 {
			t.Errorf("opened %v", l.sa.open)
		}
	})
}

// field case 22: the ACTIVE event is lost, the poll finds the port; 100 flaps in
// a second cost few looks and one opening at the end.
func TestPortComesUp(t *testing.T) {
	var told int
	down := port(1, 5)
	down.State = mad.PortInit
	bubble(t, func(l *lab, c *Config) {
		l.fab.devs = []transport.Device{device("mlx5_0", down)}
		c.OnTopology = func(eps []*Endpoint) {
			if len(eps) > 0 {
				told++
			}
		}
	}, func(t *testing.T, l *lab) {
		l.want(byGID(gidOf(9)), StatusNotConn)
		l.fab.set(device("mlx5_0", port(1, 5)))
		time.Sleep(time.Second + time.Millisecond)
		l.want(byGID(gidOf(9)), StatusNoData)
		synctest.Wait()
		if told != 1 {
			t.Errorf("told %d times", told)
		}
		synctest.Wait()
		looks := l.fab.looks
		l.fab.set(device("mlx5_0", down))
		for range 100 {
			l.event(transport.EventPortError, "mlx5_0", 1)
			l.event(transport.EventPortActive, "mlx5_0", 1)
			time.Sleep(10 * time.Millisecond)
		}
		l.fab.set(device("mlx5_0", port(1, 5)))
		time.Sleep(time.Second)
		synctest.Wait()
		if told != 2 {
			t.Errorf("told %d times", told)
		}
		if n := l.fab.looks - looks; n > 6 {
			t.Errorf("%d looks", n)
		}
	})
}

// field case 9: the SM moves and is silent for a minute. All paths are served,
// then looked up again by and by.
func TestSMChange(t *testing.T) {
	bubble(t, func(_ *lab, c *Config) { c.RefreshRate = 50 }, func(t *testing.T, l *lab) {
		const n = 5000
		qs := make([]Query, n)
		for i := range qs {
			qs[i] = Query{Src: ip("10.0.0.1"), Dst: IPAddr(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i % 250)}))}
			l.knows(qs[i].Dst, uint64(5000+i))
			l.want(qs[i], StatusSuccess)
		}
		p := port(1, 5)
		p.SMLID = 9
		l.sa.set(func() { l.sa.silent, l.sa.times = true, nil })
		l.fab.set(device("mlx5_0", p))
		l.event(transport.EventSMChange, "mlx5_0", 1)
		start := time.Now()
		for time.Since(start) < time.Minute {
			for i := range qs {
				if a, took := l.ask(qs[i]); a.Status != StatusSuccess || took != 0 {
					t.Fatalf("%v after %v: %v", a.Status, took, a.Err)
				}
			}
			time.Sleep(3 * time.Second)
		}
		synctest.Wait()
		if len(l.sa.updates) != 1 || l.sa.updates[0].SMLID != 9 {
			t.Errorf("updates %v", l.sa.updates)
		}
		l.sa.set(func() { l.sa.silent, l.sa.times = false, nil })
		start = time.Now()
		for turn := range 150 { // a turn each: time stands still while the paths are asked
			for i := range 100 {
				l.want(qs[(turn*100+i)%n], StatusSuccess)
			}
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait()
		perSecond := map[int]int{}
		for _, at := range l.sa.times {
			perSecond[int(at.Sub(start)/time.Second)]++
		}
		for s, c := range perSecond {
			if c > 51 {
				t.Errorf("%d refreshes in second %d", c, s)
			}
		}
		if n := len(l.sa.times); n < 145 || n > 155 {
			t.Errorf("%d refreshes in 150 turns", n)
		}
	})
}

// field case 65: a link that bounces without any change costs the SA nothing.
// One that comes back with another LID costs every path.
func TestPortBounce(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		l.knows(q.Dst, 9)
		l.want(q, StatusSuccess)
		slot := l.e.Endpoints()[0].Slot
		down := port(1, 5)
		down.State = mad.PortDown
		bounce := func(to transport.PortInfo) {
			l.fab.set(device("mlx5_0", down))
			l.event(transport.EventPortError, "mlx5_0", 1)
			l.want(q, StatusNotConn)
			l.fab.set(device("mlx5_0", to))
			time.Sleep(200 * time.Millisecond)
			l.event(transport.EventPortActive, "mlx5_0", 1)
			time.Sleep(200 * time.Millisecond) // the burst is over
		}
		bounce(port(1, 5))
		l.want(q, StatusSuccess)
		if l.sa.count() != 1 {
			t.Errorf("%d asks after a bounce", l.sa.count())
		}
		moved := port(1, 6)
		moved.GIDs = []mad.GID{gidOf(5)}
		bounce(moved)
		if a := l.want(q, StatusSuccess); a.Path.SLID() != 6 || l.sa.count() != 2 {
			t.Errorf("SLID %v, %d asks", a.Path.SLID(), l.sa.count())
		}
		if l.e.Endpoints()[0].Slot != slot {
			t.Error("the endpoint has another slot")
		}
		// The device goes and comes back: nothing of before is served.
		l.fab.set()
		time.Sleep(time.Second)
		if l.sa.opened("mlx5_0/1") != 0 {
			t.Error("SA client of a device that went is open")
		}
		l.fab.set(device("mlx5_0", moved))
		time.Sleep(time.Second)
		l.want(q, StatusSuccess)
		if l.sa.count() != 3 || l.e.Endpoints()[0].Slot != slot {
			t.Errorf("%d asks", l.sa.count())
		}
	})
}

// field case 48: adapters that share a node GUID, as functions of one adapter do, go
// up and down apart from each other.
func TestEqualNodeGUIDs(t *testing.T) {
	up := [2]transport.PortInfo{port(1, 5), port(1, 6)}
	names := [2]string{"mlx5_0", "mlx5_1"}
	bubble(t, func(l *lab, c *Config) {
		l.fab.devs = nil
		l.host.addrs = []HostAddr{
			{IP: netip.MustParseAddr("10.0.0.1"), Ifname: "ib0", GID: gidOf(5), PKey: 0xffff},
			{IP: netip.MustParseAddr("10.0.0.2"), Ifname: "ib1", GID: gidOf(6), PKey: 0xffff},
		}
	}, func(t *testing.T, l *lab) {
		q := [2]Query{byIP("10.0.0.1", "10.0.0.9"), byIP("10.0.0.2", "10.0.0.9")}
		l.knows(q[0].Dst, 9)
		for _, step := range []struct {
			which int
			typ   transport.EventType
			up    [2]bool
		}{
			{0, transport.EventPortActive, [2]bool{true, false}},
			{1, transport.EventPortActive, [2]bool{true, true}},
			{0, transport.EventPortError, [2]bool{false, true}},
			{1, transport.EventPortError, [2]bool{false, false}},
		} {
			var devs []transport.Device
			for i, p := range up {
				if !step.up[i] {
					p.State = mad.PortDown
				}
				devs = append(devs, device(names[i], p))
			}
			if devs[0].NodeGUID != devs[1].NodeGUID {
				t.Fatal("the adapters do not share a node GUID")
			}
			l.fab.set(devs...)
			l.event(step.typ, names[step.which], 1)
			time.Sleep(time.Second)
			active := 0
			for i := range q {
				want := StatusSrcAddr
				switch {
				case step.up[i]:
					want, active = StatusSuccess, active+1
				case step.up == [2]bool{}:
					want = StatusNotConn
				}
				a := l.want(q[i], want)
				if step.up[i] && a.Path.SLID() != up[i].LID {
					t.Errorf("%s: a path from LID %v", names[i], a.Path.SLID())
				}
				if want == StatusSrcAddr && !strings.Contains(a.Err.Error(), names[i]+"/1, which is not active") {
					t.Errorf("%s: %v", names[i], a.Err)
				}
			}
			if got := keysOf(l.e.Endpoints()); len(got) != active {
				t.Errorf("%d ports are active, endpoints %v", active, got)
			}
		}
	})
}

// What a change of the port costs.
func TestDiffPorts(t *testing.T) {
	base := port(1, 5)
	base.PKeys = []mad.PKey{0xffff, 0x0001}
	base.GIDs = []mad.GID{gidOf(5), {}, gidOf(0xa3)}
	tests := []struct {
		name string
		edit func(*transport.PortInfo)
		want change
	}{
		{"nothing", func(*transport.PortInfo) {}, change{}},
		{"LID", func(p *transport.PortInfo) { p.LID = 6 }, change{identity: true}},
		{"LMC", func(p *transport.PortInfo) { p.LMC = 1 }, change{identity: true}},
		{"GID 0", func(p *transport.PortInfo) { p.GIDs[0] = gidOf(6) }, change{identity: true}},
		{"no GID", func(p *transport.PortInfo) { p.GIDs = nil }, change{identity: true, lost: []mad.GID{gidOf(0xa3)}}},
		{"alias GID went", func(p *transport.PortInfo) { p.GIDs[2] = mad.GID{} }, change{lost: []mad.GID{gidOf(0xa3)}}},
		{"alias GID came", func(p *transport.PortInfo) { p.GIDs[1] = gidOf(7) }, change{}},
		{"SM LID", func(p *transport.PortInfo) { p.SMLID = 3 }, change{sm: true}},
		{"SM SL", func(p *transport.PortInfo) { p.SMSL = 3 }, change{sm: true}},
		{"partition came", func(p *transport.PortInfo) { p.PKeys = append(p.PKeys, 0x8002) }, change{}},
		{"partition went", func(p *transport.PortInfo) { p.PKeys[1] = 0 }, change{parts: true}},
		{"membership", func(p *transport.PortInfo) { p.PKeys[1] = 0x8001 }, change{parts: true}},
		{"partition moved", func(p *transport.PortInfo) { p.PKeys = []mad.PKey{0x0001, 0xffff} }, change{}},
		{"rate", func(p *transport.PortInfo) { p.Rate = 7 }, change{}},
	}
	for _, tt := range tests {
		now := base
		now.PKeys, now.GIDs = slices.Clone(base.PKeys), slices.Clone(base.GIDs)
		tt.edit(&now)
		got := diffPorts(&base, &now)
		if got.identity != tt.want.identity || got.parts != tt.want.parts || got.sm != tt.want.sm || !slices.Equal(got.lost, tt.want.lost) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if same := samePort(&base, &now); same != (tt.name == "nothing") {
			t.Errorf("%s: samePort = %v", tt.name, same)
		}
		if c := diffPorts(&transport.PortInfo{}, &now); c.identity || c.parts || c.sm || c.lost != nil {
			t.Errorf("%s: a port that was never active differs: %+v", tt.name, c)
		}
	}
}

// field case 50: an interface on an alias GID asks from that GID, its answers are
// kept apart, and only they go when the GID goes.
func TestAliasGID(t *testing.T) {
	p := port(1, 5)
	p.GIDs = []mad.GID{gidOf(5), {}, {}, gidOf(0xa3)}
	bubble(t, func(l *lab, _ *Config) {
		l.fab.devs = []transport.Device{device("mlx5_0", p)}
		l.host.addrs = append(l.host.addrs, HostAddr{IP: netip.MustParseAddr("10.0.0.3"), GID: gidOf(0xa3), PKey: 0xffff})
	}, func(t *testing.T, l *lab) {
		l.knows(ip("10.0.0.9"), 9)
		for range 2 {
			if a := l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess); a.Path.SGID() != gidOf(5) {
				t.Errorf("SGID %v, want GID 0", a.Path.SGID())
			}
			if a := l.want(byIP("10.0.0.3", "10.0.0.9"), StatusSuccess); a.Path.SGID() != gidOf(0xa3) {
				t.Errorf("SGID %v, want the alias", a.Path.SGID())
			}
		}
		if n := l.sa.count(); n != 2 {
			t.Errorf("%d asks, want 2", n)
		}
		gone := port(1, 5)
		l.fab.set(device("mlx5_0", gone))
		l.event(transport.EventGIDChange, "mlx5_0", 1)
		l.want(byIP("10.0.0.3", "10.0.0.9"), StatusSrcAddr)
		l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess)
		if n := l.sa.count(); n != 2 {
			t.Errorf("%d asks, want still 2", n)
		}
		l.fab.set(device("mlx5_0", p))
		time.Sleep(2 * time.Second)
		l.want(byIP("10.0.0.3", "10.0.0.9"), StatusSuccess)
		if n := l.sa.count(); n != 3 {
			t.Errorf("%d asks, want 3: the alias's path had gone", n)
		}
	})
}

// field case 76: the client of a port ends by itself while the device looks as
// before; the port is opened again. An SA that cannot be opened is tried again
// and logged once.
func TestReopen(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.sa.dead = make(chan struct{}) }, func(t *testing.T, l *lab) {
		old := l.sa.dead
		l.sa.set(func() { l.sa.dead, l.sa.openErr = make(chan struct{}), errors.New("device is gone") })
		close(old)
		time.Sleep(10 * time.Second)
		l.want(byGID(gidOf(9)), StatusNotConn)
		n := 0
		for _, line := range l.log.lines() {
			if strings.Contains(line, "level=ERROR") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d errors logged, want 1", n)
		}
		l.sa.set(func() { l.sa.openErr = nil })
		time.Sleep(2 * time.Second)
		l.want(byGID(gidOf(9)), StatusNoData)
		if l.sa.opened("mlx5_0/1") != 1 {
			t.Errorf("open %v", l.sa.open)
		}
	})
}

// field case 76: a device that looks healthy and whose every port ends at once costs
// a try at each poll and two lines, however long that goes on; then it is used.
func TestReopenForEver(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) { l.sa.dead = make(chan struct{}) }, func(t *testing.T, l *lab) {
		before, opens := len(l.log.lines()), l.sa.opens()
		close(l.sa.dead)
		const minutes = 10
		time.Sleep(minutes * time.Minute)
		if n := len(l.log.lines()) - before; n < 1 || n > 2 {
			t.Errorf("%d lines, the last: %s", n, l.log.lines()[before+n-1])
		}
		if n := l.sa.opens() - opens; n < 10 || n > minutes*60+1 {
			t.Errorf("opened %d times in %d minutes", n, minutes)
		}
		if n := l.sa.opened("mlx5_0/1"); n > 1 {
			t.Errorf("%d clients are open", n)
		}
		l.sa.set(func() { l.sa.dead = make(chan struct{}) })
		time.Sleep(2 * time.Second)
		before, dead := len(l.log.lines()), l.sa.dead
		l.want(byGID(gidOf(9)), StatusNoData)
		time.Sleep(time.Minute)
		l.sa.set(func() { l.sa.dead = make(chan struct{}) })
		close(dead)
		time.Sleep(2 * time.Second)
		if s := strings.Join(l.log.lines()[before:], ""); !strings.Contains(s, "port has ended") {
			t.Errorf("the next end was not said:\n%s", s)
		}
	})
}

// field case 28: 300 addresses on an endpoint, 130 devices, a device with 255
// ports; every address leads to its own endpoint.
func TestManyOfEverything(t *testing.T) {
	bubble(t, func(l *lab, _ *Config) {
		l.fab.devs, l.host.addrs = nil, nil
		for i := range 130 {
			l.fab.devs = append(l.fab.devs, device(fmt.Sprintf("dev%d", i), port(1, mad.LID(1000+i))))
		}
		big := device("big")
		for i := range 255 {
			big.Ports = append(big.Ports, port(uint8(i+1), mad.LID(2000+i)))
		}
		l.fab.devs = append(l.fab.devs, big)
		for i := range 300 {
			l.host.addrs = append(l.host.addrs, HostAddr{IP: netip.AddrFrom4([4]byte{10, 2, byte(i / 200), byte(i % 200)}), GID: gidOf(1129), PKey: 0xffff})
		}
		l.host.addrs = append(l.host.addrs, HostAddr{IP: netip.MustParseAddr("10.3.0.1"), GID: gidOf(2254), PKey: 0xffff})
	}, func(t *testing.T, l *lab) {
		if n := len(l.e.Endpoints()); n != 385 {
			t.Fatalf("%d endpoints", n)
		}
		for _, h := range l.host.addrs[:300] {
			a := IPAddr(h.IP)
			if ep := l.e.BySource(&a); ep == nil || ep.Device != "dev129" || len(ep.Addrs) != 300 {
				t.Fatalf("%v belongs to %v", h.IP, ep)
			}
		}
		a := ip("10.3.0.1")
		if ep := l.e.BySource(&a); ep == nil || ep.Port.Num != 255 {
			t.Errorf("10.3.0.1 belongs to %v", ep)
		}
	})
}

// field case 28: 1,000 addresses come, in steps, while 8 goroutines resolve. Real
// time, for the race detector.
func TestAddressesComeWhileResolving(t *testing.T) {
	l := newLab(t, func(l *lab, c *Config) {
		c.Poll = time.Hour
		l.acm.delay, l.sa.delay = 0, 0
	})
	l.knows(ip("10.0.0.9"), 9)
	ipOf := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 4, byte(i / 250), byte(i % 250)}) }
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := g; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if a, _ := l.ask(Query{Src: IPAddr(ipOf(i % 1000)), Dst: ip("10.0.0.9")}); a.Status != StatusSuccess && a.Status != StatusSrcAddr {
					t.Errorf("%v: %v", a.Status, a.Err)
					return
				}
			}
		}()
	}
	l.e.SetAddresses(nil)
	addrs := slices.Clone(l.host.addrs)
	for i := range 1000 {
		addrs = append(addrs, HostAddr{IP: ipOf(i), GID: gidOf(5), PKey: 0xffff})
		if i%50 == 49 {
			l.host.set(addrs...)
			l.e.SetAddresses(nil) // waits until the look is done
		}
	}
	close(stop)
	wg.Wait()
	for i := range 1000 {
		a := IPAddr(ipOf(i))
		if ep := l.e.BySource(&a); ep == nil || ep != l.e.Endpoints()[0] {
			t.Fatalf("%v belongs to %v", ipOf(i), ep)
		}
	}
	name := NameAddr("node1")
	if l.e.BySource(&name) != nil {
		t.Error("an address that was taken out of the file is still there")
	}
}

// A look that fails keeps what was known, and is logged once.
func TestLookFails(t *testing.T) {
	bubble(t, nil, func(t *testing.T, l *lab) {
		l.fab.mu.Lock()
		l.fab.err = errors.New("sysfs is not mounted")
		l.fab.mu.Unlock()
		time.Sleep(time.Minute)
		l.want(byGID(gidOf(9)), StatusNoData)
		synctest.Wait()
		n := 0
		for _, line := range l.log.lines() {
			if strings.Contains(line, "cannot be listed") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}
