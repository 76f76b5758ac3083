// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/transport"
)

// tape is a provider that writes down what is done to it. Its calls come from
// the topology goroutine, but for resolve, query and perf.
type tape struct {
	name  string
	lines []string
	fail  string // the line that is to fail
	perf  bool
}

func (p *tape) say(format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	if line == p.fail {
		return errors.New("not today")
	}
	p.lines = append(p.lines, line)
	return nil
}

func (p *tape) take() []string {
	l := p.lines
	p.lines = nil
	return l
}

type tapeDevice struct {
	*tape
	dev string
}
type tapePort struct {
	*tape
	id string
}
type tapeEndpoint struct {
	*tape
	id string
	ep *Endpoint
}
type tapeAddress struct {
	*tape
	text string
}

func (p *tape) Name() string { return p.name }
func (p *tape) OpenDevice(d *transport.Device) (ProviderDevice, error) {
	return &tapeDevice{p, d.Name}, p.say("open device %s", d.Name)
}
func (d *tapeDevice) Close() { d.say("close device %s", d.dev) }
func (d *tapeDevice) OpenPort(o *OpenPort) (ProviderPort, error) {
	id := fmt.Sprintf("%s/%d", o.Device, o.Info.Num)
	if o.SA == nil {
		return nil, errors.New("no SA")
	}
	return &tapePort{d.tape, id}, d.say("open port %s", id)
}
func (p *tapePort) Close()                            { p.say("close port %s", p.id) }
func (p *tapePort) HandleEvent(t transport.EventType) { p.say("event %s %d", p.id, t) }
func (p *tapePort) OpenEndpoint(ep *Endpoint) (ProviderEndpoint, error) {
	return &tapeEndpoint{p.tape, ep.label(), ep}, p.say("open endpoint %s", ep.label())
}
func (x *tapeEndpoint) Close() { x.say("close endpoint %s", x.id) }
func (x *tapeEndpoint) AddAddress(a *LocalAddr) (ProviderAddress, error) {
	return &tapeAddress{x.tape, a.Text}, x.say("add %s", a.Text)
}
func (a *tapeAddress) Remove()                 { a.say("remove %s", a.text) }
func (x *tapeEndpoint) Perf() (Counters, bool) { return Counters{1, 2, 3, 4, 5, 6, 7}, x.perf }
func (x *tapeEndpoint) Resolve(ask *Ask, done func(*Resolution)) {
	if ask.Dst == ip("10.0.0.66") {
		done(&Resolution{Status: StatusDestAddr, Err: errors.New("tape: not on this one")})
	} else {
		r := &Resolution{Path: ask.Path, Origin: OriginGroup, Lifetime: time.Minute}
		r.Path.SetDLID(4711)
		done(r)
	}
	done(&Resolution{Status: StatusInvalid, Err: errors.New("a second call is ignored")})
}
func (x *tapeEndpoint) Query(mask sa.ComponentMask, path *sa.PathRecord, done func(SAResult)) {
	r := SAResult{Path: *path, Valid: true}
	r.Path.SetTClass(uint8(mask))
	done(r)
}

const tapePrefix = 0xfec0000000000099

// The provider of a port is chosen by the prefix of its GID 0, and is led through
// the life cycle of the plug-in interface in its order.
func TestProviderLifeCycle(t *testing.T) {
	p := &tape{name: "Tape"}
	p1, p2 := port(1, 5), port(2, 6)
	p2.GIDs = []mad.GID{mad.MakeGID(tapePrefix, 6)}
	p2.PKeys = []mad.PKey{0xffff, 0, 0x8001}
	host := func(s string) HostAddr {
		return HostAddr{IP: netip.MustParseAddr(s), GID: mad.MakeGID(tapePrefix, 6), PKey: 0xffff}
	}
	bubble(t, func(l *lab, c *Config) {
		l.fab.devs = []transport.Device{device("mlx5_0", p1, p2)}
		l.host.addrs = append(l.host.addrs, host("10.0.0.2"))
		c.Providers = []Provider{p}
		c.ProviderRules = []ProviderRule{{"absent", tapePrefix}, {"tape", tapePrefix}, {"ibacmp", tapePrefix}}
		c.Addresses = append(c.Addresses, AddressEntry{Addr: NameAddr("two"), Text: "two", Device: "mlx5_0", Port: 2, PKey: 1})
	}, func(t *testing.T, l *lab) {
		check := func(what string, want ...string) {
			t.Helper()
			if got := p.take(); !slices.Equal(got, want) {
				t.Errorf("%s:\n got %q\nwant %q", what, got, want)
			}
		}
		change := func(ports ...transport.PortInfo) {
			l.fab.set(device("mlx5_0", ports...))
			l.e.SetAddresses(l.e.cfg.Addresses)
		}
		check("start", "open device mlx5_0", "open port mlx5_0/2", "open endpoint mlx5_0/2/0xffff", "add 10.0.0.2",
			"open endpoint mlx5_0/2/0x8001", "add two")
		var names []string
		for _, ep := range l.e.Endpoints() {
			names = append(names, ep.Provider)
		}
		if !slices.Equal(names, []string{"ibacmp", "Tape", "Tape"}) {
			t.Errorf("providers %q", names)
		}
		l.host.set(append(l.host.addrs[:2:2], host("10.0.0.3"))...)
		change(p1, p2)
		check("address replaced", "remove 10.0.0.2", "add 10.0.0.3")
		sm := p2
		sm.SMLID = 7
		change(p1, sm)
		check("SM change")
		l.event(transport.EventReregister, "mlx5_0", 2)
		l.event(transport.EventSMChange, "mlx5_0", 2)
		l.event(transport.EventReregister, "mlx5_0", 1)
		check("events", "event mlx5_0/2 17")
		parts := sm
		parts.PKeys = []mad.PKey{0xffff, 0x8002, 0x0001} // membership changed, one came
		change(p1, parts)
		check("partitions", "open endpoint mlx5_0/2/0x8002", "remove two", "close endpoint mlx5_0/2/0x8001",
			"open endpoint mlx5_0/2/0x0001", "add two")
		parts.PKeys = []mad.PKey{0xffff}
		change(p1, parts)
		closed := p.take()
		slices.Sort(closed)
		if !slices.Equal(closed, []string{"close endpoint mlx5_0/2/0x0001", "close endpoint mlx5_0/2/0x8002", "remove two"}) {
			t.Errorf("partitions went: %q", closed)
		}
		lid := parts
		lid.LID = 16
		change(p1, lid)
		check("LID change", "remove 10.0.0.3", "close endpoint mlx5_0/2/0xffff", "close port mlx5_0/2", "close device mlx5_0",
			"open device mlx5_0", "open port mlx5_0/2", "open endpoint mlx5_0/2/0xffff", "add 10.0.0.3")
		down := lid
		down.State = mad.PortDown
		change(p1, down)
		check("port down", "remove 10.0.0.3", "close endpoint mlx5_0/2/0xffff", "close port mlx5_0/2", "close device mlx5_0")
		change(p1, lid)
		p.take()
		l.e.Close()
		check("end", "remove 10.0.0.3", "close endpoint mlx5_0/2/0xffff", "close port mlx5_0/2", "close device mlx5_0")
		n := 0
		for _, line := range l.log.lines() {
			if strings.Contains(line, "no such provider") && strings.Contains(line, "absent") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the rule for an absent provider was logged %d times", n)
		}
	})
}

// What a provider answers is cached for its lifetime, failures are told, its
// counters are shown.
func TestProviderAnswers(t *testing.T) {
	p := &tape{name: "tape"}
	bubble(t, func(_ *lab, c *Config) { c.Providers, c.DefaultProvider = []Provider{p}, "TAPE" }, func(t *testing.T, l *lab) {
		q := byIP("10.0.0.1", "10.0.0.9")
		for range 2 {
			if a := l.want(q, StatusSuccess); a.Path.DLID() != 4711 || a.Origin != OriginGroup || a.Path.SGID() != gidOf(5) {
				t.Errorf("%+v", a)
			}
		}
		if s := l.e.Stats(); s.Started != 1 {
			t.Errorf("stats %+v", s)
		}
		time.Sleep(time.Minute)
		l.want(q, StatusSuccess)
		if s := l.e.Stats(); s.Started != 2 {
			t.Errorf("the answer outlived its lifetime: %+v", s)
		}
		l.want(byIP("10.0.0.1", "10.0.0.66"), StatusDestAddr)
		ask := byGID(gidOf(9))
		ask.Kind = AskSA
		if a := l.want(ask, StatusSuccess); a.Path.TClass() != uint8(sa.PathDGID) {
			t.Errorf("%+v", a)
		}
		ep := l.e.Endpoints()[0]
		if c := l.e.EndpointCounters(ep); c[CounterResolve] != 4 {
			t.Errorf("counters %v", c)
		}
		p.perf = true
		if c := l.e.EndpointCounters(ep); c != (Counters{1, 2, 3, 4, 5, 6, 7}) {
			t.Errorf("counters %v", c)
		}
	})
}

// An open that fails leaves its object closed and is tried again; what is open
// goes on.
func TestProviderFailures(t *testing.T) {
	for _, tt := range []struct {
		fail string
		want Status // while it fails, for a query from 10.0.0.1
	}{
		{"open device mlx5_0", StatusNotConn}, {"open port mlx5_0/1", StatusNotConn},
		{"open endpoint mlx5_0/1/0xffff", StatusNotConn}, {"add 10.0.0.1", StatusSrcAddr},
	} {
		p := &tape{name: "tape", fail: tt.fail}
		bubble(t, func(_ *lab, c *Config) { c.Providers, c.DefaultProvider = []Provider{p}, "tape" }, func(t *testing.T, l *lab) {
			l.want(byIP("10.0.0.1", "10.0.0.9"), tt.want)
			time.Sleep(5 * time.Second)
			errs := 0
			for _, line := range l.log.lines() {
				if strings.Contains(line, "not today") {
					errs++
				}
			}
			if errs != 1 {
				t.Errorf("%s: logged %d times", tt.fail, errs)
			}
			l.e.SetAddresses(l.e.cfg.Addresses)
			p.fail = ""
			l.e.SetAddresses(l.e.cfg.Addresses)
			l.want(byIP("10.0.0.1", "10.0.0.9"), StatusSuccess)
			opened := 0
			for _, line := range p.take() {
				switch {
				case strings.HasPrefix(line, "open device"):
					opened++
				case strings.HasPrefix(line, "close device"):
					opened--
				}
			}
			if opened != 1 {
				t.Errorf("%s: device is open %d times", tt.fail, opened)
			}
		})
	}
}

func TestConfigErrors(t *testing.T) {
	fab := &fakeFabric{}
	open := (&fakeSA{open: map[string]int{}}).openPort
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	for _, cfg := range []Config{
		{}, {Fabric: fab, Host: &fakeHost{}}, {Fabric: fab, OpenSA: open}, {Host: &fakeHost{}, OpenSA: open},
		{Fabric: fab, Host: &fakeHost{}, OpenSA: open, Providers: []Provider{&tape{name: "IBACMP"}}},
		{Fabric: fab, Host: &fakeHost{}, OpenSA: open, Providers: []Provider{&tape{name: "a"}, &tape{name: "A"}}},
	} {
		cfg.Log = quiet
		if e, err := New(cfg); err == nil {
			e.Close()
			t.Errorf("New(%+v) succeeded", cfg)
		}
	}
	// A default provider that is not there is the built-in one, with a warning.
	e, err := New(Config{Fabric: fab, Host: &fakeHost{}, OpenSA: open, DefaultProvider: "absent", Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if got := e.providerFor(&transport.PortInfo{}).Name(); got != DefaultProviderName {
		t.Errorf("provider %q", got)
	}
	e.Close()
}
