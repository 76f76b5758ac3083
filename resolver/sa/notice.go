// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"errors"
	"time"

	"acmd/mad"
	madsa "acmd/mad/sa"
)

const (
	// renewSpread is over how long the nodes of a fabric spread what they ask when
	// the SM tells all of them at once that it has forgotten them.
	renewSpread = time.Second
	// renewPause bounds the pause between two tries of a subscription that fails.
	// In between it is a fifth of the time since it fails.
	minRenewPause = 500 * time.Millisecond
	maxRenewPause = time.Minute
	// verifyEvery is how often the SA is asked whether it still knows us. Where no
	// event tells of a reregistration, nothing else would show that it does not.
	verifyEvery = 10 * time.Minute
	// reportTime is the response time that a subscription names: 4.096 us x 2^19, 2 s.
	reportTime = 19
)

// Subscription is what [Client.Subscribe] takes. Its functions run on the owner
// goroutine and must not block.
type Subscription struct {
	Traps []uint16
	// Notice is called with each notice that the SM reports, which is valid during
	// the call. The same event can come more than once.
	Notice func(*madsa.Notice)
	// State tells when the subscription to all traps begins to hold, with the time
	// for which notices may have been missed before, and when it may have ended.
	State func(subscribed bool, gap time.Duration)
}

// notices is the client's state of the subscription, of the owner goroutine.
type notices struct {
	sub    Subscription
	timer  Timer
	next   int   // index of the trap that is asked for
	asking bool  // a request is with the SA
	again  bool  // begin anew when its answer is there
	held   bool  // all traps are subscribed to, as far as we know
	lost   int64 // since when they are not
	sure   int64 // when the SM was last known to have them
	began  int64 // when the last round began
	failed int64 // since when tries fail, 0: they do not
	said   bool  // this outage was logged
	doubt  bool  // the SA was silent, or there was none

	gone    map[mad.GUID]struct{} // ports out of service
	second  int64                 // start of the second in which reports are counted
	reports int                   // taken in it
}

// Subscribe keeps a subscription to notices (InformInfo; IBTA vol. 1, 13.4.8.3)
// for the life of the client: it is made anew when the SM moves, when the port
// comes up and after [Client.Reregister], tried again with growing pauses while it
// fails, and ended with the client. On a port that receives no Reports, as another
// agent of this host has them, it tells so once and does nothing. It fails as Post
// does. Only one subscription is kept: a second call replaces the first.
func (c *Client) Subscribe(s Subscription) error {
	return c.Post(func() {
		n := &c.notices
		c.Stop(&n.timer)
		*n = notices{sub: s, lost: c.now, again: n.asking, asking: n.asking, gone: map[mad.GUID]struct{}{}}
		n.timer.Fire = c.noticeTimer
		if !c.caps.Reports {
			c.log.Info("SA notices are not received on this port: another agent has them, or the transport passes none; paths that die end with their lifetime")
			return
		}
		c.Handle(mad.ClassSA, c.takeReport)
		c.renew(false)
	})
}

// Reregister tells that the SM asks its clients to register again (event
// CLIENT_REREGISTER): it may have forgotten the subscription.
func (c *Client) Reregister() {
	c.forgotten.Store(true) // not posted: it is not to be lost when the queue is full
	c.notify()
}

// wantsNotices reports whether a subscription is to be kept.
func (c *Client) wantsNotices() bool { return c.notices.sub.Notice != nil && c.caps.Reports }

// renew begins a round of subscribing soon. With lost the SM is known to have none
// of ours.
func (c *Client) renew(lost bool) {
	n := &c.notices
	if !c.wantsNotices() {
		return
	}
	if lost {
		c.unheld(c.now)
	}
	if n.next = 0; n.asking {
		n.again = true
		return
	}
	wait := c.rnd.Int64N(int64(renewSpread))
	if ago := c.now - n.began; n.began != 0 && ago+wait < int64(renewSpread) {
		wait += int64(renewSpread) - ago // what makes us begin comes in swarms
	}
	n.failed = 0
	c.timers.set(&n.timer, c.now+wait)
}

// unheld notes that the SM may have forgotten the subscription at that time. Nobody
// then tells of ports that come back.
func (c *Client) unheld(since int64) {
	n := &c.notices
	clear(n.gone)
	if !n.held {
		return
	}
	n.held, n.lost = false, since
	c.count.subscribed.Store(0)
	n.sub.State(false, 0)
}

func (c *Client) noticeTimer() {
	if c.notices.held && c.notices.next == len(c.notices.sub.Traps) {
		c.verify()
		return
	}
	c.subscribeNext()
}

// subscribeNext asks for one trap. While no SM can be reached nothing is asked:
// retarget begins anew when one is.
func (c *Client) subscribeNext() {
	n := &c.notices
	if !c.reachable() || n.next >= len(n.sub.Traps) {
		return
	}
	if n.next == 0 {
		n.began = c.now
	}
	n.asking = true
	in := c.informInfo(n.sub.Traps[n.next], true)
	c.Do(&Query{Method: mad.MethodSet, Attr: madsa.AttrInformInfo, Data: in[:], Tries: 1}, c.subscribed)
}

// informInfo is a subscription to one trap of any issuer. The queue pair is the
// one that SA requests leave from: where reports go, and what must be repeated to
// end the subscription.
func (c *Client) informInfo(trap uint16, on bool) (in madsa.InformInfo) {
	qpn := mad.QP1
	if !c.caps.Listens && c.caps.QPN != 0 {
		qpn = c.caps.QPN
	}
	in.SetLIDRange(madsa.AnyLID, 0)
	in.SetGeneric(true)
	in.SetSubscribe(on)
	in.SetType(madsa.AnyType)
	in.SetTrap(trap)
	in.SetQPNTime(qpn, reportTime)
	in.SetProducer(madsa.AnyProducer)
	return in
}

// subscribed takes the answer to subscribeNext.
func (c *Client) subscribed(r *Result) {
	n := &c.notices
	n.asking = false
	switch {
	case c.ended():
	case n.again:
		n.again = false
		c.renew(false)
	case r.Err != nil:
		c.subscribeFailed(r.Err)
	default:
		n.failed = 0
		if n.next++; n.next < len(n.sub.Traps) {
			c.subscribeNext()
			return
		}
		c.isHeld()
	}
}

// isHeld notes that the SM took the whole subscription.
func (c *Client) isHeld() {
	n := &c.notices
	c.timers.set(&n.timer, c.now+int64(verifyEvery)+c.rnd.Int64N(int64(verifyEvery)/4))
	if n.said {
		n.said = false
		c.log.Info("SA notices are received again")
	}
	if n.held {
		return
	}
	n.held, n.sure = true, c.now
	c.count.subscriptions.Add(1)
	c.count.subscribed.Store(int64(len(n.sub.Traps)))
	n.sub.State(true, time.Duration(c.now-n.lost))
}

// subscribeFailed plans the next try.
func (c *Client) subscribeFailed(err error) {
	n := &c.notices
	c.unheld(c.now)
	c.count.subscribeErrors.Add(1)
	if n.failed == 0 {
		n.failed = c.now
	}
	if !n.said && c.reachable() {
		n.said = true
		c.log.Warn("SA notices cannot be subscribed to, trying again; paths that die meanwhile end with their lifetime",
			"trap", n.sub.Traps[n.next], "err", err)
	}
	pause := min(max((c.now-n.failed)/5, int64(minRenewPause)), int64(maxRenewPause))
	c.timers.set(&n.timer, c.now+pause+c.rnd.Int64N(pause/2))
}

// verify asks the SA whether it has a subscription of this port.
func (c *Client) verify() {
	if !c.reachable() || len(c.cur.GIDs) == 0 {
		return
	}
	c.notices.asking = true
	var rec [informRecordSize]byte
	copy(rec[:], c.cur.GIDs[0][:])
	c.Do(&Query{Method: mad.MethodGetTable, Attr: madsa.AttrInformInfoRecord, Mask: informRecordGID, Data: rec[:], Tries: 1}, c.verified)
}

// InformInfoRecord (IBTA vol. 1, 15.2.5.12): the subscriber's GID is the first of
// its components.
const (
	informRecordSize                     = 64
	informRecordGID  madsa.ComponentMask = 1
)

// verified takes the answer to verify. An SA that does not tell is asked for the
// subscription again, which does no harm where it has it.
func (c *Client) verified(r *Result) {
	n := &c.notices
	n.asking = false
	known := r.Err == nil && len(r.Message) >= madsa.DataOffset+informRecordSize
	switch {
	case c.ended():
	case n.again:
		n.again = false
		c.renew(false)
	case known:
		n.sure = c.now
		c.timers.set(&n.timer, c.now+int64(verifyEvery)+c.rnd.Int64N(int64(verifyEvery)/4))
	case r.Err == nil || errors.Is(r.Err, ErrNoRecords):
		// It may have been so since it was last asked: an SM that starts again where it
		// was leaves no other sign.
		c.unheld(n.sure)
		c.renew(false)
	default:
		c.renew(false)
	}
}

// doubtSubscription notes that the SA was away: when it answers again it may be
// another one, or have forgotten all.
func (c *Client) doubtSubscription() { c.notices.doubt = true }

// askIfDoubted has an SA that is back asked whether it still knows us.
func (c *Client) askIfDoubted() {
	n := &c.notices
	if !n.doubt {
		return
	}
	if n.doubt = false; n.held && !n.asking {
		c.timers.set(&n.timer, c.now+c.rnd.Int64N(int64(renewSpread)))
	}
}

func (c *Client) ended() bool { return c.Err() != nil }

// unsubscribe tells the SM that nobody listens any more, without waiting for an
// answer: the port is about to be closed.
func (c *Client) unsubscribe() {
	if !c.wantsNotices() || !c.reachable() || c.notices.next == 0 {
		return
	}
	for _, trap := range c.notices.sub.Traps {
		in := c.informInfo(trap, false)
		s := c.slot(nil)
		h, m := s.Header(), s.MAD()
		c.address(h)
		madsa.Init(m, mad.MethodSet, madsa.AttrInformInfo, 0)
		m.SetTID(mad.TID(c.newTID()))
		*madsa.Inform(m) = in
		c.count.sent.Add(1)
	}
	c.flush()
}
