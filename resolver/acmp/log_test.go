// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"acmd/mad"
	"acmd/mad/fabric"
	"acmd/mad/madtest"
	madsa "acmd/mad/sa"
	"acmd/resolver/sa"
)

// Field case 67: a port in 126 partitions says what befalls all of them once, with
// how many there are, at the default level of the log.
func TestManyPartitionsAreOneLine(t *testing.T) {
	const parts = 126
	table := make([]mad.PKey, parts)
	for i := range table {
		table[i] = mad.PKey(0x8001 + i)
	}
	cfg := fabric.Config{Nodes: 4, PKeys: func(int) []mad.PKey { return table }}
	inBubble(t, cfg, func(t *testing.T, f *fabric.Fabric) {
		refuse := f.AddRule(fabric.Rule{Attr: madsa.AttrMCMemberRecord, Do: fabric.Answer, Status: 0x0200})
		lines := &madtest.Output{}
		p, err := f.Host(0).Open(fabric.DeviceName, 1)
		if err != nil {
			t.Fatal(err)
		}
		nd := &node{tb: t, f: f, src: New(Config{}, lines.Logger())}
		nd.client = sa.Open(p, info(f, 0), sa.Config{Retries: 2}, nil)
		defer nd.stop()
		if err := nd.src.Attach(fabric.DeviceName, 1, nd.client); err != nil {
			t.Fatal(err)
		}
		nd.endpoints()
		const minutes = 10
		time.Sleep(minutes * time.Minute)
		synctest.Wait()
		if n := strings.Count(lines.String(), "acm: join"); n < minutes/2 || n > minutes+1 {
			t.Errorf("%d lines in %d minutes of refusals to %d partitions", n, minutes, parts)
		}
		if s := lines.String(); !strings.Contains(s, "joined=0 groups=126") || !strings.Contains(s, "request invalid") {
			t.Errorf("the lines do not say of how many groups, or why:\n%.600s", s)
		}
		refuse.Remove()
		before := len(lines.String())
		time.Sleep(maxJoinPause + time.Second)
		synctest.Wait()
		for _, g := range nd.src.Groups() {
			if !g.Joined {
				t.Fatalf("not joined: %+v", g)
			}
		}
		if s := lines.String()[before:]; strings.Count(s, "\n") != 1 || !strings.Contains(s, "joined=126 groups=126") {
			t.Errorf("joining was told with\n%.600s", s)
		}
	})
}
