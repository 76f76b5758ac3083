// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"acmd/cache"
	"acmd/mad"
	"acmd/mad/sa"
	"acmd/resolver"
	"acmd/resolver/config"
)

// Name is the word of this source in addr_prot and in answers.
const Name = "preload"

// Source answers from a hosts file and a path record dump. It implements
// resolver.AddressSource and resolver.RouteSource. All methods are safe for concurrent use; what Load
// reads takes effect as a whole.
type Source struct {
	hostsFile, dumpFile string

	load sync.Mutex // one Load at a time
	now  atomic.Pointer[snapshot]
}

var (
	_ resolver.AddressSource = (*Source)(nil)
	_ resolver.RouteSource   = (*Source)(nil)
)

type snapshot struct {
	hosts *Hosts // may be nil
	dump  *Dump  // may be nil
	ports map[portID]bool

	loaded bool // Load was called
}

// New makes a source of two files, either of which may be "". It knows nothing
// until Load.
func New(hostsFile, dumpFile string) *Source {
	s := &Source{hostsFile: hostsFile, dumpFile: dumpFile}
	s.now.Store(&snapshot{})
	return s
}

// Name implements resolver.AddressSource.
func (*Source) Name() string { return Name }

// Load reads both files, the dump for the ports of eps. A file that cannot be
// read is an error and leaves what was known of it in force; the other file is
// read all the same. An endpoint without a block in the dump is a problem.
func (s *Source) Load(eps []*resolver.Endpoint) ([]config.Problem, error) {
	s.load.Lock()
	defer s.load.Unlock()
	next := *s.now.Load()
	next.loaded = true
	var list []config.Problem
	var errs []error
	if s.hostsFile != "" {
		h, ps, err := readFile(s.hostsFile, func(f *os.File) (*Hosts, []config.Problem, error) {
			return ReadHosts(f, s.hostsFile)
		})
		if err == nil {
			next.hosts = h
		}
		list, errs = append(list, ps...), append(errs, err)
	}
	if s.dumpFile != "" {
		ports := portsOf(eps)
		d, ps, err := readFile(s.dumpFile, func(f *os.File) (*Dump, []config.Problem, error) {
			return ReadDump(f, s.dumpFile, func(g mad.GUID, l mad.LID) bool { return ports[portID{g, l}] })
		})
		if err == nil {
			next.dump, next.ports = d, ports
			ps = append(ps, missing(d, ports, s.dumpFile)...)
		}
		list, errs = append(list, ps...), append(errs, err)
	}
	s.now.Store(&next)
	return list, errors.Join(errs...)
}

func readFile[T any](path string, read func(*os.File) (T, []config.Problem, error)) (T, []config.Problem, error) {
	f, err := os.Open(path)
	if err != nil {
		var none T
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("preload file %s: %w", path, fs.ErrNotExist)
		}
		return none, nil, err
	}
	defer f.Close()
	return read(f)
}

func portsOf(eps []*resolver.Endpoint) map[portID]bool {
	m := map[portID]bool{}
	for _, ep := range eps {
		m[portOf(ep)] = true
	}
	return m
}

func portOf(ep *resolver.Endpoint) portID { return portID{ep.GID.GUID(), ep.Port.LID} }

// missing reports ports without a block, in a stable order.
func missing(d *Dump, ports map[portID]bool, file string) []config.Problem {
	var out []config.Problem
	for id := range ports {
		if _, ok := d.blocks[id]; !ok {
			out = append(out, config.Problem{File: file, Text: fmt.Sprintf("no paths from port %v with base LID %d", id.guid, id.lid)})
		}
	}
	slices.SortFunc(out, func(a, b config.Problem) int { return cmp.Compare(a.Text, b.Text) })
	return out
}

// Stale reports whether Load would find more: nothing was read yet, or the dump
// was read without the port of one of these endpoints.
func (s *Source) Stale(eps []*resolver.Endpoint) bool {
	now := s.now.Load()
	if !now.loaded {
		return s.hostsFile != "" || s.dumpFile != ""
	}
	if s.dumpFile == "" {
		return false
	}
	for _, ep := range eps {
		if !now.ports[portOf(ep)] {
			return true
		}
	}
	return false
}

// Counts tells the rows of the hosts file, the ports in the dump, and the paths
// from our own ports.
func (s *Source) Counts() (hosts, ports, paths int) {
	now := s.now.Load()
	if now.hosts != nil {
		hosts = now.hosts.Len()
	}
	if now.dump != nil {
		ports = len(now.dump.nodes)
		for _, b := range now.dump.blocks {
			paths += len(b)
		}
	}
	return hosts, ports, paths
}

// Locate implements resolver.AddressSource: the GID of a name or IP address
// from the hosts file, with its route where the dump has one. A GID or LID as
// destination is found in the dump alone. done is called before it returns.
func (s *Source) Locate(ep *resolver.Endpoint, _, dst *resolver.Addr, _ time.Time, done func(resolver.Location, error)) {
	now := s.now.Load()
	loc := resolver.Location{Source: Name}
	switch dst.Kind {
	case cache.KindName, cache.KindIPv4, cache.KindIPv6:
		gid, ok := now.hosts.Lookup(dst)
		if loc.GID = gid; !ok {
			done(resolver.Location{}, fmt.Errorf("preload: no row in the hosts file: %w", resolver.ErrUnknown))
			return
		}
		if r, ok := now.byGID(ep, loc.GID); ok {
			setRoute(&loc, r)
		}
	default:
		r, ok := now.route(ep, dst)
		if !ok {
			done(resolver.Location{}, fmt.Errorf("preload: no path in the dump: %w", resolver.ErrUnknown))
			return
		}
		loc.GID = r.DGID()
		setRoute(&loc, r)
	}
	done(loc, nil)
}

func setRoute(loc *resolver.Location, r sa.PathRecord) {
	loc.LID, loc.Route, loc.Origin = r.DLID(), &r, resolver.OriginPreload
}

// Route returns the preloaded path from an endpoint to a GID or LID.
func (s *Source) Route(ep *resolver.Endpoint, dst resolver.Addr) (sa.PathRecord, bool) {
	return s.now.Load().route(ep, &dst)
}

func (n *snapshot) route(ep *resolver.Endpoint, dst *resolver.Addr) (sa.PathRecord, bool) {
	switch {
	case dst.Kind == cache.KindGID && dst.Len == 16:
		return n.byGID(ep, mad.GID(dst.Data[:16]))
	case dst.Kind == cache.KindLID && dst.Len == 2:
		return n.byLID(ep, mad.LID(dst.Data[0])<<8|mad.LID(dst.Data[1]))
	}
	return sa.PathRecord{}, false
}

func (n *snapshot) byLID(ep *resolver.Endpoint, l mad.LID) (sa.PathRecord, bool) {
	if n.dump == nil {
		return sa.PathRecord{}, false
	}
	block := n.dump.blocks[portOf(ep)]
	i, ok := findPath(block, l)
	if !ok {
		return sa.PathRecord{}, false
	}
	owner, ok := n.dump.Owner(l)
	if !ok {
		return sa.PathRecord{}, false
	}
	return record(ep, owner.GUID, block[i]), true
}

// byGID finds the path to the lowest LID of the port that is reachable. A dump
// is about one subnet, so a GID of another prefix is not in it.
func (n *snapshot) byGID(ep *resolver.Endpoint, g mad.GID) (sa.PathRecord, bool) {
	if n.dump == nil || g.Prefix() != ep.GID.Prefix() {
		return sa.PathRecord{}, false
	}
	base, ok := n.dump.BaseLID(g.GUID())
	if !ok {
		return sa.PathRecord{}, false
	}
	block := n.dump.blocks[portOf(ep)]
	i, _ := findPath(block, base)
	if i == len(block) {
		return sa.PathRecord{}, false
	}
	if owner, ok := n.dump.Owner(block[i].DLID); !ok || owner.LID != base {
		return sa.PathRecord{}, false
	}
	return record(ep, g.GUID(), block[i]), true
}

// record makes the path record of a path line. Values are exact: the dump says
// what the path has, not what was asked for. To the port itself a packet takes
// no time.
func record(ep *resolver.Endpoint, guid mad.GUID, p Path) (r sa.PathRecord) {
	r.SetDGID(mad.MakeGID(ep.GID.Prefix(), guid))
	r.SetSGID(ep.GID)
	r.SetDLID(p.DLID)
	r.SetSLID(ep.Port.LID)
	r.SetReversibleNumPath(true, 0)
	r.SetPKey(ep.PKey)
	r.SetQoSClassSL(0, p.SL)
	r.SetMTU(sa.Exactly, p.MTU)
	r.SetRate(sa.Exactly, p.Rate)
	life := ep.Port.SubnetTimeout
	if p.DLID == ep.Port.LID {
		life = 0
	}
	r.SetLifetime(sa.Exactly, life)
	return r
}
