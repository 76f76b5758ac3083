// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/ibsim"
	"acmd/mad/madtest"
	"acmd/mad/madtest/peer"
	"acmd/mad/ring"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// Port GUIDs of small.net.
const (
	guidA mad.GUID = 0x100001
	guidB mad.GUID = 0x100003
)

func config(f *peer.Fabric, node string) ibsim.Config {
	return ibsim.Config{Base: f.SockName, Remote: f.Remote, Node: node, Poison: true}
}

func harness(f *peer.Fabric, cfg ibsim.Config) madtest.Harness {
	return madtest.Harness{
		New: func(t *testing.T) (transport.Fabric, string, uint8) {
			fab, err := ibsim.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return fab, "ibsim0", 1
		},
		Unreachable: f.FreeLID(),
		Poisoned:    true,
		Pollable:    true,
		Reports:     cfg.ISSM || cfg.QP > 1,
		ReportQPN:   cfg.QP,
	}
}

// TestTransport runs the conformance suite against a real OpenSM, through both
// socket families and in every role that a client can have.
func TestTransport(t *testing.T) {
	for _, family := range []struct {
		name string
		opts []peer.FabricOption
	}{{"Local", nil}, {"Remote", []peer.FabricOption{peer.Remote()}}} {
		t.Run(family.name, func(t *testing.T) {
			f := peer.StartFabric(t, "small.net", family.opts...)
			t.Run("Plain", func(t *testing.T) { madtest.TestTransport(t, harness(f, config(f, "node-a"))) })
			t.Run("ISSM", func(t *testing.T) {
				cfg := config(f, "node-b")
				cfg.ISSM = true
				madtest.TestTransport(t, harness(f, cfg))
			})
			t.Run("QP", func(t *testing.T) {
				cfg := config(f, "node-c")
				cfg.QP = 0x4d
				madtest.TestTransport(t, harness(f, cfg))
			})
		})
	}
}

// open opens the port of a node; both are closed by the test.
func open(t *testing.T, cfg ibsim.Config) (*ibsim.Fabric, transport.Port, transport.PortInfo) {
	t.Helper()
	f, err := ibsim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	list, err := f.Devices()
	if err != nil || len(list) != 1 || len(list[0].Ports) != 1 {
		t.Fatalf("devices: %+v, %v", list, err)
	}
	p, err := f.Open("ibsim0", 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return f, p, list[0].Ports[0]
}

// ask sends one MAD to QP1 of a LID and returns what comes back.
func ask(t *testing.T, p transport.Port, lid mad.LID, build func(*mad.Packet)) (mad.UserHeader, mad.Packet) {
	t.Helper()
	s := p.Ring().Get()
	defer s.Release()
	*s.Header() = mad.UserHeader{}
	s.Header().SetLID(lid)
	s.Header().SetQPN(mad.QP1)
	build(s.MAD())
	if n, err := p.Send([]*ring.Slot{s}); n != 1 {
		t.Fatalf("send: %v", err)
	}
	if n, err := p.Recv([]*ring.Slot{s}, time.Now().Add(madtest.AnswerTime)); n != 1 {
		t.Fatalf("recv: %d, %v", n, err)
	}
	return *s.Header(), *s.MAD()
}

func pathQuery(tid mad.TID, slid, dlid mad.LID) func(*mad.Packet) {
	return func(p *mad.Packet) {
		sa.Init(p, mad.MethodGet, sa.AttrPathRecord, sa.PathSLID|sa.PathDLID|sa.PathReversible|sa.PathNumPath)
		p.SetTID(tid)
		r := sa.Path(p)
		r.SetSLID(slid)
		r.SetDLID(dlid)
		r.SetReversibleNumPath(true, 1)
	}
}

// TestPathEqualsSaquery compares the answer to a query with what saquery prints
// for the same one.
func TestPathEqualsSaquery(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	fab, port, info := open(t, config(f, "node-a"))
	lidA, lidB := f.LID(t, guidA), f.LID(t, guidB)
	if info.LID != lidA || info.GIDs[0] != mad.MakeGID(0xfe80<<48, guidA) {
		t.Errorf("node-a has LID %v, GID %v; OpenSM says %v, %v", info.LID, info.GIDs[0], lidA, guidA)
	}
	h, p := ask(t, port, info.SMLID, pathQuery(0xfedc_ba98_7654_3210, lidA, lidB))
	r := sa.Path(&p)
	out := peer.Saquery(t, f, "node-d", "-p", "--slid", fmt.Sprint(lidA), "--dlid", fmt.Sprint(lidB))
	mtu, rate := r[54], r[55]
	for name, got := range map[string]string{
		"dgid": r.DGID().String(), "sgid": r.SGID().String(),
		"dlid": r.DLID().String(), "slid": r.SLID().String(),
		"pkey": fmt.Sprintf("0x%04X", uint16(r.PKey())), "sl": fmt.Sprintf("0x%X", r.SL()),
		"num_path_revers": fmt.Sprintf("0x%X", r[49]),
		"mtu":             fmt.Sprintf("0x%X", mtu), "rate": fmt.Sprintf("0x%X", rate),
		"pkt_life": fmt.Sprintf("0x%X", r[56]), "preference": fmt.Sprintf("0x%X", r[57]),
	} {
		if want := peer.Field(out, name); want != got || want == "" {
			t.Errorf("%s: %q, saquery says %q", name, got, want)
		}
	}
	// The payload's length is passed on, and the upper 16 bits of the TID are not ours.
	if h.Length() != mad.UserHeaderSize+sa.DataOffset+64 || uint64(p.TID())<<16>>16 != 0xba98_7654_3210 {
		t.Errorf("length %d, TID %v", h.Length(), p.TID())
	}
	if _, sel := r.MTU(); sel != info.MTU {
		t.Errorf("path MTU %v, port MTU %v", sel, info.MTU)
	}
	if _, rate := r.Rate(); rate != info.Rate {
		t.Errorf("path rate %v, port rate %v: all links of the netlist are alike", rate, info.Rate)
	}
	if s := fab.Stats(); s.Sent != 1 || s.Received != 1 || s.Undelivered != 0 || s.Dropped != 0 {
		t.Errorf("counters %+v", s)
	}
}

// TestTableIsCut: three records fit into one MAD, whatever the SA has.
func TestTableIsCut(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	_, port, info := open(t, config(f, "node-a"))
	h, p := ask(t, port, info.SMLID, func(p *mad.Packet) {
		sa.Init(p, mad.MethodGetTable, sa.AttrPathRecord, sa.PathSLID|sa.PathReversible|sa.PathNumPath)
		p.SetTID(7)
		sa.Path(p).SetSLID(info.LID)
		sa.Path(p).SetReversibleNumPath(true, 1)
	})
	if p.Method() != mad.MethodTableResp || p.Status() != 0 || sa.AttrOffset(&p) != 8 {
		t.Errorf("method %#x status %#x offset %d", p.Method(), p.Status(), sa.AttrOffset(&p))
	}
	if h.Length() != ring.SlotSize {
		t.Errorf("length %d, want a full MAD", h.Length())
	}
}

// TestUnreachable: what cannot be delivered comes back at once, with its TID.
func TestUnreachable(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	fab, port, info := open(t, config(f, "node-a"))
	for name, lid := range map[string]mad.LID{
		"nobody has the LID":     f.FreeLID(),
		"no client on the node":  f.LID(t, guidB),
		"multicast":              0xc001,
		"no LID":                 0,
		"beyond the LIDs in use": 0xbfff,
	} {
		h, p := ask(t, port, lid, pathQuery(0x1234_5678, info.LID, lid))
		if h.Status() != mad.StatusTimeout || p.TID().Low() != 0x1234_5678 || h.LID() != lid || h.QPN() != 1 ||
			h.Length() != mad.UserHeaderSize+mad.HeaderSize {
			t.Errorf("%s: status %d TID %v LID %v QP %d length %d", name, h.Status(), p.TID(), h.LID(), h.QPN(), h.Length())
		}
	}
	if s := fab.Stats(); s.Undelivered != 5 {
		t.Errorf("counters %+v", s)
	}
}

// TestSimulatorAnswers asks the simulator itself: a directed route NodeInfo of
// the own port and performance counters of a neighbour.
func TestSimulatorAnswers(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	_, port, info := open(t, config(f, "node-a"))
	s := port.Ring().Get()
	defer s.Release()
	*s.Header() = mad.UserHeader{}
	s.Header().SetLID(0xffff)
	p := s.MAD()
	p.Init(mad.ClassSubnDir, 1, mad.MethodGet)
	p.SetTID(5)
	p.SetAttrID(0x11)
	for i := 32; i < 36; i++ {
		p[i] = 0xff // permissive DrSLID and DrDLID
	}
	if n, err := port.Send([]*ring.Slot{s}); n != 1 {
		t.Fatal(err)
	}
	if n, err := port.Recv([]*ring.Slot{s}, time.Now().Add(madtest.AnswerTime)); n != 1 {
		t.Fatalf("recv: %d, %v", n, err)
	}
	if p.Method() != mad.MethodGetResp || p[64+2] != 1 || s.Header().Status() != 0 {
		t.Errorf("NodeInfo: method %#x, node type %d, status %d", p.Method(), p[64+2], s.Header().Status())
	}
	h, pm := ask(t, port, f.LID(t, guidB), func(p *mad.Packet) {
		p.Init(mad.ClassPerf, 1, mad.MethodGet)
		p.SetTID(6)
		p.SetAttrID(0x12) // PortCounters
		p[64+1] = 1       // port
	})
	if pm.Method() != mad.MethodGetResp || h.LID() != f.LID(t, guidB) {
		t.Errorf("PortCounters: method %#x from LID %v", pm.Method(), h.LID())
	}
	_ = info
}

// TestRefusals: each reason has its own words.
func TestRefusals(t *testing.T) {
	if _, err := ibsim.New(ibsim.Config{Base: "acmd-no-such-simulator"}); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("no simulator: %v", err)
	}
	f := peer.StartFabric(t, "small.net")
	if _, err := ibsim.New(config(f, "node-z")); err == nil || !strings.Contains(err.Error(), `no node "node-z"`) {
		t.Errorf("unknown node: %v", err)
	}
	cfg := config(f, "sm-host")
	cfg.ISSM = true
	if _, err := ibsim.New(cfg); err == nil || !strings.Contains(err.Error(), "subnet manager's client already") {
		t.Errorf("OpenSM's node: %v", err)
	}
	// OpenSM has one of ten slots.
	var fabrics []*ibsim.Fabric
	for range 9 {
		fab, err := ibsim.New(config(f, "node-a"))
		if err != nil {
			t.Fatalf("client %d: %v", len(fabrics)+1, err)
		}
		defer fab.Close()
		fabrics = append(fabrics, fab)
	}
	if _, err := ibsim.New(config(f, "node-b")); err == nil || !strings.Contains(err.Error(), "no free client slot") {
		t.Errorf("tenth client: %v", err)
	}
	// A clean end gives the slot back.
	fabrics[4].Close()
	fab, err := ibsim.New(config(f, "node-b"))
	if err != nil {
		t.Fatalf("after a close: %v", err)
	}
	fab.Close()
}

// TestInUse: one port is open at a time.
func TestInUse(t *testing.T) {
	f := peer.StartFabric(t, "small.net")
	fab, _, _ := open(t, config(f, "node-a"))
	if _, err := fab.Open("ibsim0", 1); err == nil || !strings.Contains(err.Error(), transport.ErrInUse.Error()) {
		t.Errorf("second open: %v", err)
	}
}
