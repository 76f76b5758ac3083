// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"acmd/mad"
	"acmd/resolver/config"
)

// maxLID is the first LID that is not unicast (IBTA vol. 1, 4.1.3).
const maxLID = 0xc000

// Node is a port that has a block in a dump.
type Node struct {
	GUID mad.GUID
	LID  mad.LID // base LID
	Line int     // of its header
}

// Path is a path line: from the port of its block to a LID.
type Path struct {
	DLID mad.LID
	SL   uint8
	MTU  mad.MTU
	Rate mad.Rate
}

// Dump is a path record dump. It is immutable.
type Dump struct {
	nodes  []Node // by LID
	byGUID map[mad.GUID]mad.LID
	blocks map[portID][]Path // by DLID

	// Unreachable counts the lines of kept blocks that say so.
	Unreachable int
}

type portID struct {
	guid mad.GUID
	lid  mad.LID
}

// Nodes returns the ports of the fabric by ascending LID; they must not be
// changed.
func (d *Dump) Nodes() []Node { return d.nodes }

// Block returns the paths of the port with this GUID and base LID by ascending
// DLID, and whether the dump has such a block that was wanted.
func (d *Dump) Block(guid mad.GUID, lid mad.LID) ([]Path, bool) {
	p, ok := d.blocks[portID{guid, lid}]
	return p, ok
}

// Owner finds the port that a DLID belongs to.
func (d *Dump) Owner(l mad.LID) (Node, bool) {
	i, ok := slices.BinarySearchFunc(d.nodes, l, func(n Node, l mad.LID) int { return cmp.Compare(n.LID, l) })
	if ok {
		return d.nodes[i], true
	}
	if i == 0 {
		return Node{}, false
	}
	n := d.nodes[i-1]
	// Within the range of the largest LMC that the base LID is aligned for?
	if size := min(n.LID&-n.LID, 1<<7); l-n.LID >= size {
		return Node{}, false
	}
	return n, true
}

// BaseLID returns the base LID of a port.
func (d *Dump) BaseLID(g mad.GUID) (mad.LID, bool) {
	l, ok := d.byGUID[g]
	return l, ok
}

// ReadDump reads a dump in OpenSM's format opensm_full_v1 and keeps the paths of
// the ports for which want says so (nil: all); name stands for the file in
// messages. Bad lines are problems and left out, as is the whole block of a bad
// header.
func ReadDump(r io.Reader, name string, want func(guid mad.GUID, baseLID mad.LID) bool) (*Dump, []config.Problem, error) {
	p := dumpParser{
		log:   config.Problems{File: name},
		want:  want,
		lids:  map[mad.LID]Node{},
		paths: map[portID][]Path{},
		d:     &Dump{byGUID: map[mad.GUID]mad.LID{}},
	}
	if err := eachLine(r, &p.log, p.line); err != nil {
		return nil, nil, fmt.Errorf("path record dump %s: %w", name, err)
	}
	p.endBlock()
	p.finish()
	return p.d, p.log.Done(), nil
}

// dumpParser is the state between lines.
type dumpParser struct {
	log   config.Problems
	want  func(mad.GUID, mad.LID) bool
	lids  map[mad.LID]Node
	paths map[portID][]Path
	d     *Dump

	in    blockState
	block portID
	cur   []Path
	seen  [maxLID / 64]uint64 // DLIDs of the block
}

type blockState uint8

const (
	outside blockState = iota // before any header
	skipped                   // a block that nobody wants, or a bad one
	inside
)

func (p *dumpParser) line(n int, b []byte) {
	switch c := b[0]; {
	case c == '#':
	case c == '0' || isSpace(c) || c >= '1' && c <= '9':
		switch p.in {
		case inside:
			p.path(n, b)
		case outside:
			p.log.Warn(n, "path without a header, ignored")
		}
	default:
		p.header(n, b)
	}
}

func (p *dumpParser) header(n int, b []byte) {
	p.endBlock()
	p.in = skipped
	node, err := parseHeader(b)
	if err != nil {
		p.log.Warn(n, "%v, its paths are ignored", err)
		return
	}
	node.Line = n
	if old, ok := p.lids[node.LID]; ok {
		p.log.Warn(n, "base LID %d is that of %v in line %d already, its paths are ignored", node.LID, old.GUID, old.Line)
		return
	}
	p.lids[node.LID] = node
	if lid, ok := p.d.byGUID[node.GUID]; !ok {
		p.d.byGUID[node.GUID] = node.LID
	} else {
		p.log.Warn(n, "%v has base LID %d in line %d already", node.GUID, lid, p.lids[lid].Line)
	}
	if p.want == nil || p.want(node.GUID, node.LID) {
		p.in = inside
		p.block = portID{node.GUID, node.LID}
	}
}

// parseHeader reads `Channel Adapter 0x..., base LID 4, "...", port 1` up to the
// second comma: what follows is a description of any content.
func parseHeader(b []byte) (n Node, err error) {
	kind, rest := word(b)
	switch string(kind) {
	case "Switch", "Router":
	case "Channel":
		var w []byte
		if w, rest = word(rest); string(w) != "Adapter" {
			return n, fmt.Errorf("unknown node type %.32q", b)
		}
	default:
		return n, fmt.Errorf("unknown line %.32q", b)
	}
	guid, rest, _ := bytes.Cut(rest, []byte(","))
	lid, _, ok := bytes.Cut(rest, []byte(","))
	lid, ok2 := bytes.CutPrefix(bytes.TrimSpace(lid), []byte("base LID "))
	if !ok || !ok2 {
		return n, fmt.Errorf("header %.64q has no base LID", b)
	}
	g, ok := number(bytes.TrimSpace(guid), 1<<64-1)
	if !ok || g == 0 {
		return n, fmt.Errorf("header with port GUID %.32q", guid)
	}
	l, ok := number(bytes.TrimSpace(lid), 1<<16-1)
	if !ok || !mad.LID(l).IsUnicast() {
		return n, fmt.Errorf("header with base LID %.32q", lid)
	}
	return Node{GUID: mad.GUID(g), LID: mad.LID(l)}, nil
}

// path reads `0x0001 : 0  : 4   : 3` or `0x0009 : UNREACHABLE`.
func (p *dumpParser) path(n int, b []byte) {
	lid, rest, _ := bytes.Cut(b, []byte(":"))
	l, ok := number(bytes.TrimSpace(lid), 1<<16-1)
	if !ok || !mad.LID(l).IsUnicast() {
		p.log.Warn(n, "%.32q is not a unicast LID, line ignored", bytes.TrimSpace(lid))
		return
	}
	if string(bytes.TrimSpace(rest)) == "UNREACHABLE" {
		p.d.Unreachable++
		return
	}
	path, err := parseValues(rest)
	if err != nil {
		p.log.Warn(n, "path to LID %d: %v, line ignored", l, err)
		return
	}
	if bit := uint64(1) << (l % 64); p.seen[l/64]&bit == 0 {
		p.seen[l/64] |= bit
	} else {
		p.log.Warn(n, "path to LID %d is in this block already, line ignored", l)
		return
	}
	path.DLID = mad.LID(l)
	p.cur = append(p.cur, path)
}

var errValues = errors.New("SL, MTU and rate are expected")

func parseValues(b []byte) (p Path, err error) {
	sl, b, ok1 := bytes.Cut(b, []byte(":"))
	mtu, rate, ok2 := bytes.Cut(b, []byte(":"))
	if !ok1 || !ok2 {
		return p, errValues
	}
	s, ok := number(bytes.TrimSpace(sl), 15)
	if !ok {
		return p, fmt.Errorf("SL %.16q", bytes.TrimSpace(sl))
	}
	// Codes that we do not know pass through, as long as their six bits hold them.
	m, ok := number(bytes.TrimSpace(mtu), 63)
	if !ok || m == 0 {
		return p, fmt.Errorf("MTU code %.16q", bytes.TrimSpace(mtu))
	}
	r, ok := number(bytes.TrimSpace(rate), 63)
	if !ok || r == 0 {
		return p, fmt.Errorf("rate code %.16q", bytes.TrimSpace(rate))
	}
	return Path{SL: uint8(s), MTU: mad.MTU(m), Rate: mad.Rate(r)}, nil
}

func (p *dumpParser) endBlock() {
	if p.in == inside {
		slices.SortFunc(p.cur, func(a, b Path) int { return cmp.Compare(a.DLID, b.DLID) })
		p.paths[p.block] = slices.Clone(p.cur)
		p.cur = p.cur[:0]
		clear(p.seen[:])
	}
	p.in = outside
}

// finish makes the table by LID and leaves out paths to LIDs of no known port.
func (p *dumpParser) finish() {
	d := p.d
	d.blocks = p.paths
	d.nodes = make([]Node, 0, len(p.lids))
	for _, n := range p.lids {
		d.nodes = append(d.nodes, n)
	}
	slices.SortFunc(d.nodes, func(a, b Node) int { return cmp.Compare(a.LID, b.LID) })
	for id, paths := range d.blocks {
		kept := slices.DeleteFunc(paths, func(q Path) bool { _, ok := d.Owner(q.DLID); return !ok })
		if n := len(paths) - len(kept); n > 0 {
			p.log.Warn(p.lids[id.lid].Line, "%d paths of LID %d lead to LIDs of no port in the file", n, id.lid)
		}
		d.blocks[id] = kept
	}
}
