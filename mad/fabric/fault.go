// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package fabric

import (
	"slices"
	"sync/atomic"
	"time"

	"acmd/mad"
	"acmd/mad/sa"
)

// Where says at which point of a MAD's way a [Rule] applies.
type Where uint8

const (
	Requests   Where = 1 << iota // what a local port sends, answers to Reports included
	Deliveries                   // what arrives at a local port
)

// Action is what a [Rule] does beside delay and copies.
type Action uint8

const (
	Pass      Action = iota // nothing more
	Drop                    // the MAD gets lost
	Answer                  // the SA answers with the rule's Status; requests only
	OtherDGID               // the answer's path leads to another GID
	OtherTID                // the answer has another TID
	OtherAttr               // the answer has another attribute
)

// Rule is a fault, or any other treatment of MADs that it selects. Zero fields
// select everything.
type Rule struct {
	On     Where  // 0: Deliveries for Pass and the Other actions, else Requests
	Class  uint8  // management class
	Attr   uint16 // attribute
	Method uint8  // of the request, also where its answer is selected
	Nodes  []int  // local nodes that send or receive
	// Match decides further; it sees the request for the SA's answers, else the
	// MAD itself, and runs inside Send or a timer.
	Match func(node int, m *mad.Packet) bool

	Skip  int           // let that many pass first
	Count int           // then treat that many: 0, all
	For   time.Duration // as long as that after AddRule: 0, for ever
	Prob  float64       // treat with that probability: 0, always

	Do              Action
	Status          mad.Status    // of Answer: mad.StatusBusy, 0x0300 (no records) ...
	Delay, DelayMax time.Duration // uniform between both; a DelayMax below Delay is Delay
	Copies          int           // more copies of the MAD
}

// ActiveRule is a rule that was added to a fabric.
type ActiveRule struct {
	Rule
	f          *Fabric
	salt       uint64
	until      time.Time
	seen, hits atomic.Int64
}

// AddRule makes a rule count from now on, after those that were added before.
// Chances depend on the fabric's seed, the order of rules and the number of
// MADs that the rule selected: one sender sees the same faults in every run.
func (f *Fabric) AddRule(r Rule) *ActiveRule {
	if r.On == 0 {
		r.On = Requests
		if r.Do == Pass || r.Do >= OtherDGID {
			r.On = Deliveries
		}
	}
	r.DelayMax = max(r.DelayMax, r.Delay)
	a := &ActiveRule{Rule: r, f: f}
	if r.For > 0 {
		a.until = time.Now().Add(r.For)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules++
	a.salt = mix(f.cfg.Seed ^ f.rules<<32)
	var list []*ActiveRule
	if p := f.faults.Load(); p != nil {
		list = slices.Clone(*p)
	}
	list = append(list, a)
	f.faults.Store(&list)
	return a
}

// Remove ends the rule. What it delayed is still delivered.
func (a *ActiveRule) Remove() {
	f := a.f
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.faults.Load()
	if p == nil {
		return
	}
	list := slices.DeleteFunc(slices.Clone(*p), func(o *ActiveRule) bool { return o == a })
	if len(list) == 0 {
		f.faults.Store(nil)
		return
	}
	f.faults.Store(&list)
}

// Hits returns how many MADs the rule has treated.
func (a *ActiveRule) Hits() int {
	n := int(a.hits.Load())
	if a.Count > 0 {
		n = min(n, a.Count)
	}
	return n
}

// verdict is what the rules say of one MAD.
type verdict struct {
	drop   bool
	copies int
	delay  time.Duration
	status mad.Status
	wrong  Action
}

// judge asks all rules in order; one that drops ends it.
func (f *Fabric) judge(rules []*ActiveRule, on Where, p *port, m *mad.Packet) verdict {
	v := verdict{copies: 1}
	for _, a := range rules {
		if a.On&on == 0 || !a.selects(p.node, m) {
			continue
		}
		chance, ok := a.strikes()
		if !ok {
			continue
		}
		v.delay += a.Delay + time.Duration(unit(mix(chance))*float64(a.DelayMax-a.Delay))
		v.copies += max(0, a.Copies)
		switch a.Do {
		case Drop:
			v.drop = true
			return v
		case Answer:
			v.status = a.Status
		case OtherDGID, OtherTID, OtherAttr:
			v.wrong = a.Do
		}
	}
	return v
}

// selects tells whether the rule is about such a MAD.
func (a *ActiveRule) selects(node int, m *mad.Packet) bool {
	switch {
	case a.Class != 0 && a.Class != m.Class(),
		a.Attr != 0 && a.Attr != m.AttrID(),
		a.Method != 0 && a.Method != m.Method()&^mad.MethodResponse,
		len(a.Nodes) > 0 && !slices.Contains(a.Nodes, node),
		!a.until.IsZero() && !time.Now().Before(a.until):
		return false
	}
	return a.Match == nil || a.Match(node, m)
}

// strikes counts a selected MAD and decides whether it is treated. The hash is
// what all its chances come from.
func (a *ActiveRule) strikes() (hash uint64, ok bool) {
	n := a.seen.Add(1)
	if n <= int64(a.Skip) {
		return 0, false
	}
	hash = mix(a.salt + uint64(n))
	if a.Prob > 0 && unit(hash) >= a.Prob {
		return 0, false
	}
	return hash, a.hits.Add(1) <= int64(a.Count) || a.Count <= 0
}

// spoil makes an answer wrong.
func (v *verdict) spoil(m *mad.Packet) {
	switch v.wrong {
	case OtherDGID:
		if m.Class() == mad.ClassSA && m.AttrID() == sa.AttrPathRecord {
			sa.Path(m)[23] ^= 0x80
		}
	case OtherTID:
		m.SetTID(m.TID() ^ 0x00555500)
	case OtherAttr:
		m.SetAttrID(sa.AttrNodeRecord)
	}
}
