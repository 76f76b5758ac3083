// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/sa"
	"acmd/mad/transport"
	"acmd/resolver"
)

const (
	dayPeers = 1000
	// How long what happened may show in answers. Notices and events are acted on at
	// once; the address step of a node that just came back waits for its next try;
	// what nothing tells of ends with the lifetime of a route.
	dayNotice   = 100 * time.Millisecond
	dayEvent    = 3 * time.Second
	dayAddress  = 20 * time.Second
	dayLifetime = 10 * time.Minute
)

// day is a scripted day of one node, against a model: what the SA would say now.
type day struct {
	*node
	rnd     *rand.Rand
	host    *dayHost
	down    map[int]bool // peers
	gone    bool         // our own port cannot be used
	noIPv4  bool         // our IPv4 address is away
	keys    []mad.PKey
	nextLID mad.LID
	asked   int
}

// dayHost is a host whose addresses move.
type dayHost struct {
	resolver.Host
	mu   sync.Mutex
	hide bool
	gen  resolver.Generation
}

func (h *dayHost) Addresses() ([]resolver.HostAddr, error) {
	list, err := h.Host.Addresses()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hide {
		list = slices.DeleteFunc(slices.Clone(list), func(a resolver.HostAddr) bool { return a.IP.Is4() })
	}
	return list, err
}

func (h *dayHost) Generation() *resolver.Generation { return &h.gen }

func (h *dayHost) set(hide bool) { h.mu.Lock(); h.hide = hide; h.mu.Unlock(); h.gen.Raise() }

// spellings are the ways to ask for a peer: five entries of the cache.
func (d *day) spellings(i int) []resolver.Query {
	return []resolver.Query{
		toIPv4(i),
		{Src: resolver.IPAddr(fabric.IPv6(0, 1)), Dst: resolver.IPAddr(fabric.IPv6(i, 1))},
		{Src: resolver.NameAddr(fabric.NodeName(0, 1)), Dst: resolver.NameAddr(fabric.NodeName(i, 1))},
		d.byGID(i), d.byLID(i),
	}
}

// dayAnswers takes the answers of a whole round.
type dayAnswers struct {
	mu   sync.Mutex
	list []resolver.Answer
	left sync.WaitGroup
}

func (a *dayAnswers) Answered(tag uint64, ans *resolver.Answer) {
	a.mu.Lock()
	a.list[tag] = *ans
	a.mu.Unlock()
	a.left.Done()
}

// check asks for peers, in the spellings from first on, all at once, and compares
// every answer with the model.
func (d *day) check(what string, first int, peers ...int) {
	d.t.Helper()
	var asks []resolver.Query
	for _, i := range peers {
		asks = append(asks, d.spellings(i)[first:]...)
	}
	w := &dayAnswers{list: make([]resolver.Answer, len(asks))}
	for tag := range asks {
		var a resolver.Answer
		if d.e.Lookup(&asks[tag], d.e.Now(), &a) {
			w.mu.Lock()
			w.list[tag] = a
			w.mu.Unlock()
			continue
		}
		w.left.Add(1)
		d.e.Resolve(&asks[tag], uint64(tag), w)
	}
	w.left.Wait()
	d.asked += len(asks)
	per := len(d.spellings(1)) - first
	wrong := 0
	for tag := range asks {
		i, spelling := peers[tag/per], tag%per+first
		if err := d.judge(&w.list[tag], i, spelling); err != nil {
			if wrong++; wrong <= 3 {
				d.t.Errorf("%s: peer %d, spelling %d: %v", what, i, spelling, err)
			}
		}
	}
	if wrong > 3 {
		d.t.Errorf("%s: %d answers differ from the model in all", what, wrong)
	}
	if wrong > 0 {
		d.t.FailNow()
	}
}

// judge compares an answer with what the SA says now.
func (d *day) judge(a *resolver.Answer, i, spelling int) error {
	if d.gone || d.down[i] || spelling == 0 && d.noIPv4 {
		if a.Status == resolver.StatusSuccess {
			return fmt.Errorf("a path that there is not: %x", a.Path)
		}
		return nil
	}
	if a.Status != resolver.StatusSuccess {
		return fmt.Errorf("%v: %v", a.Status, a.Err)
	}
	var q sa.PathRecord
	q.SetSGID(d.fab.GID(0, 1))
	q.SetDGID(d.fab.GID(i, 1))
	q.SetPKey(mad.DefaultPKey)
	want, status := d.fab.SAPath(sa.PathMask(&q), &q)
	if status != 0 {
		return fmt.Errorf("the SA has no path: status 0x%04x", uint16(status))
	}
	want.SetReversibleNumPath(want.Reversible(), a.Path.NumPath())
	if a.Path != want {
		return fmt.Errorf("\n got %x\nwant %x", a.Path, want)
	}
	return nil
}

// some draws peers.
func (d *day) some(n int) (list []int) {
	for range n {
		list = append(list, 1+d.rnd.IntN(dayPeers))
	}
	return list
}

func (d *day) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// freeLID is one that nobody had yet.
func (d *day) freeLID() mad.LID { d.nextLID++; return d.nextLID }

// set brings a peer's port up or down, and returns once everything knows.
func (d *day) set(i int, up bool) {
	d.t.Helper()
	state := mad.PortDown
	if up {
		state = mad.PortActive
	}
	d.must(d.fab.SetPort(i, 1, state))
	d.down[i] = !up
	time.Sleep(dayNotice)
	d.check(fmt.Sprintf("peer %d up %v", i, up), 3, append(d.some(20), i)...)
	if up {
		time.Sleep(dayAddress)
	}
	d.check(fmt.Sprintf("peer %d up %v, all spellings", i, up), 0, append(d.some(20), i)...)
}

// events of a day; each returns what it was once all answers should be right.
var dayEvents = []func(*day) string{
	func(d *day) string { // a peer reboots
		i := d.some(1)[0]
		d.set(i, false)
		time.Sleep(time.Duration(d.rnd.IntN(120)) * time.Second)
		d.set(i, true)
		return "a peer rebooted"
	},
	func(d *day) string { // and comes back with another LID
		i := d.some(1)[0]
		d.set(i, false)
		d.must(d.fab.SetLID(i, 1, d.freeLID()))
		d.set(i, true)
		return "a peer came back with another LID"
	},
	func(d *day) string { // the SM gives a peer another LID, of which nothing tells
		d.must(d.fab.SetLID(d.some(1)[0], 1, d.freeLID()))
		time.Sleep(dayLifetime)
		return "a peer got another LID"
	},
	func(d *day) string { // our own link flaps, in a burst
		d.gone = true
		for range 1 + d.rnd.IntN(20) {
			d.must(d.fab.SetPort(0, 1, mad.PortDown))
			time.Sleep(time.Duration(d.rnd.IntN(20)) * time.Millisecond)
			d.must(d.fab.SetPort(0, 1, mad.PortActive))
			time.Sleep(time.Duration(d.rnd.IntN(20)) * time.Millisecond)
		}
		d.must(d.fab.SetPort(0, 1, mad.PortDown))
		time.Sleep(dayEvent)
		d.check("own link down", 0, d.some(20)...)
		d.must(d.fab.SetPort(0, 1, mad.PortActive))
		d.must(d.fab.Raise(0, 1, transport.EventReregister))
		d.gone = false
		time.Sleep(dayEvent)
		return "own link flapped"
	},
	func(d *day) string { // our own LID
		d.must(d.fab.SetLID(0, 1, d.freeLID()))
		time.Sleep(dayEvent)
		return "own LID changed"
	},
	func(d *day) string { // hand-over, with every choice of events
		kinds := [][]transport.EventType{{transport.EventSMChange}, {transport.EventReregister}, {transport.EventSMChange, transport.EventReregister}, nil}
		keep := d.rnd.IntN(2) == 0
		d.must(d.fab.MoveSM(d.some(1)[0], keep, kinds[d.rnd.IntN(len(kinds))]...))
		d.check("the moment of a hand-over", 0, d.some(50)...)
		time.Sleep(dayEvent)
		return "another SM"
	},
	func(d *day) string { // the SA is silent for a minute
		time.Sleep(dayLifetime) // so that no lifetime ends in that minute
		d.check("before the silence", 0, d.all()...)
		rule := d.fab.AddRule(fabric.Rule{On: fabric.Requests, Class: mad.ClassSA, Do: fabric.Drop})
		for range 6 {
			time.Sleep(10 * time.Second)
			d.check("the SA is silent", 0, d.all()...)
		}
		rule.Remove()
		time.Sleep(dayAddress)
		return "the SA was silent for a minute"
	},
	func(d *day) string { // a partition goes and comes back
		d.must(d.fab.SetPKeys(0, d.keys[:1]))
		time.Sleep(dayEvent)
		d.partition(false)
		d.check("a partition is away", 0, d.some(20)...)
		d.must(d.fab.SetPKeys(0, d.keys))
		time.Sleep(dayEvent)
		d.partition(true)
		return "a partition came back"
	},
	func(d *day) string { // our IPv4 address moves away and comes back
		d.host.set(true)
		d.e.Kick()
		d.noIPv4 = true
		time.Sleep(dayEvent)
		d.check("IPv4 address away", 0, d.some(20)...)
		d.host.set(false)
		d.noIPv4 = false
		time.Sleep(dayEvent) // found by the poll
		return "IPv4 address came back"
	},
	func(d *day) string { // the adapter is pulled and put back
		d.must(d.fab.RemoveDevice(0))
		d.gone = true
		time.Sleep(dayEvent)
		d.check("adapter pulled", 0, d.some(20)...)
		d.must(d.fab.RestoreDevice(0))
		d.gone = false
		time.Sleep(dayEvent)
		return "adapter back"
	},
}

// partition asks for a path in the second partition.
func (d *day) partition(there bool) {
	d.t.Helper()
	q := d.byGID(d.some(1)[0])
	q.Path.SetPKey(d.keys[1])
	if a, _ := d.answer(q); (a.Status == resolver.StatusSuccess) != there || there && a.Path.PKey().Number() != d.keys[1].Number() {
		d.t.Errorf("partition there %v: %v, %v", there, a.Status, a.Err)
	}
}

func (d *day) all() (list []int) {
	for i := 1; i <= dayPeers; i++ {
		list = append(list, i)
	}
	return list
}

func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A scripted day: whatever happens to 1,000 nodes, within its bound no answer of the
// 5,000 that are cached differs from what the SA says, and nothing piles up. Field
// cases 8, 9, 10, 22, 23, 26, 65 and 76.
func TestScriptedDay(t *testing.T) {
	keys := []mad.PKey{mad.DefaultPKey, 0x8001}
	cfg := fabric.Config{Nodes: dayPeers + 1, Seed: 1, Delay: 100 * time.Microsecond, DelayMax: 2 * time.Millisecond,
		PKeys: func(int) []mad.PKey { return keys }}
	host := &dayHost{}
	edit := func(c *resolver.Config) {
		host.Host = c.Host
		c.Host, c.RouteTimeout, c.Refresh = host, dayLifetime, 5*time.Minute
	}
	fds := descriptors(t)
	onFabricWith(t, cfg, edit, func(n *node) {
		d := &day{node: n, rnd: rand.New(rand.NewPCG(1, 2)), host: host, down: map[int]bool{}, keys: keys, nextLID: 20000}
		d.check("morning", 0, d.all()...)
		quiet := func() int { time.Sleep(time.Minute); synctest.Wait(); return runtime.NumGoroutine() }
		base := quiet()
		begin, rounds := time.Now(), 0
		for round := range dayRounds {
			for _, k := range d.rnd.Perm(len(dayEvents)) {
				what := dayEvents[k](d)
				d.check(fmt.Sprintf("round %d: %s", round, what), 0, d.all()...)
				rounds++
				time.Sleep(time.Duration(d.rnd.IntN(dayIdle)) * time.Minute)
			}
		}
		t.Logf("%d events in %v, %d answers right", rounds, time.Since(begin).Round(time.Minute), d.asked)
		if now := quiet(); now != base {
			t.Errorf("%d goroutines, %d in the morning", now, base)
		}
		if st := n.e.Stats(); st.Flights != 0 || st.Waiters != 0 || n.e.CacheLen() > 3*5*dayPeers {
			t.Errorf("%+v, %d entries", st, n.e.CacheLen())
		}
	})
	if now := descriptors(t); now != fds {
		t.Errorf("%d descriptors, %d before", now, fds)
	}
}
