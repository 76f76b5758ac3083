// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"acmd/mad/sa"
)

// replies describes what comes back on a fresh connection for chunks that are
// written with a pause between them: "opcode/status/length" of each reply, then
// "closed", "open", or "waits" if that is what is wanted and nothing more comes.
func replies(t *testing.T, s *Server, want string, chunks ...[]byte) string {
	t.Helper()
	c := dialServer(t, s)
	defer c.Close()
	for i, b := range chunks {
		if i > 0 {
			time.Sleep(5 * time.Millisecond)
		}
		if _, err := c.Write(b); err != nil {
			return fmt.Sprintf("write: %v", err)
		}
	}
	// A good request behind everything: its reply ends the wait when the
	// connection was kept. A partial message swallows it, hence the deadline, which
	// is short only where it is to come.
	mark := AppendPerf(nil, 0xfeed, 0, nil)
	c.Write(mark)
	if strings.HasSuffix(want, "waits") {
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	}
	out := ""
	for {
		h := make([]byte, HeaderSize)
		if _, err := io.ReadFull(c, h); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return out + "waits"
			}
			return out + "closed"
		}
		if TID(h) == 0xfeed {
			return out + "open"
		}
		n := lengthOf(h)
		if _, err := io.CopyN(io.Discard, c, int64(n-HeaderSize)); err != nil {
			return out + "short reply"
		}
		out += fmt.Sprintf("%02x/%d/%d ", h[1], h[2], n)
	}
}

// TestProbes has every message of field case 12 and of the load tool's probes.
func TestProbes(t *testing.T) {
	f := goldenEndpoints()
	f.eps[0].Addrs = nil
	f.eps[0].Addrs = append(f.eps[0].Addrs, localIP(10, 0, 0, 1))
	s := serve(t, f, nil)
	src, dst := rec(FlagSource, TypeIPv4, 10, 0, 0, 1), rec(FlagDest, TypeIPv4, 10, 0, 0, 2)
	good := AppendResolve(nil, 7, src, dst)
	list := func(r ...Record) []byte { return AppendResolve(nil, 7, r...) }
	edit := func(f func(b []byte)) []byte { b := bytes.Clone(good); f(b); return b }
	length := func(n int) []byte { return edit(func(b []byte) { binary.NativeEndian.PutUint16(b[6:], uint16(n)) }) }
	op := func(o byte, bigEndian bool) []byte {
		return edit(func(b []byte) {
			b[1] = o
			if bigEndian {
				binary.BigEndian.PutUint16(b[6:], uint16(len(b)))
			}
		})
	}
	path := func(edit func(p *sa.PathRecord)) Record {
		var p sa.PathRecord
		p.SetReversibleNumPath(true, 1)
		edit(&p)
		return PathQuery(p, 0)
	}
	verify := PathQuery(examplePath(), FlagQuerySA)
	perf := func(i byte) []byte { return AppendPerf(nil, 7, i, nil) }
	ep := func(i, port byte) []byte { return AppendEndpoint(nil, 7, i, port) }
	const done = "01/0/88 open"
	for _, c := range []struct {
		name   string
		chunks [][]byte
		want   string
	}{
		{"good request", [][]byte{good}, done},
		{"opcode 0x11", [][]byte{op(0x11, false)}, "91/2/16 closed"},
		{"opcode 0x81, host order", [][]byte{op(0x81, false)}, "81/2/16 closed"},
		{"opcode 0x81, big endian", [][]byte{op(0x81, true)}, "81/2/16 closed"},
		{"header in two pieces", [][]byte{good[:8], good[8:]}, done},
		{"header, then the rest", [][]byte{good[:16], good[16:]}, done},
		{"two requests in one write", [][]byte{append(bytes.Clone(good), good...)}, "01/0/88 " + done},
		{"length field 0", [][]byte{length(0)}, "81/2/16 closed"},
		{"length field 15", [][]byte{length(15)}, "81/2/16 closed"},
		{"length field 16, the rest is a bad header", [][]byte{length(16)}, "81/10/16 80/2/16 closed"},
		{"length field 593", [][]byte{append(bytes.Clone(length(593)), make([]byte, 433)...)}, "81/2/16 closed"},
		{"length field 65535", [][]byte{length(65535)}, "81/2/16 closed"},
		{"1 trailing byte", [][]byte{append(length(161), 0)}, done},
		{"padded to 592 bytes", [][]byte{append(length(592), make([]byte, 432)...)}, done},
		{"87 bytes", [][]byte{resize(list(dst), 87)}, "81/10/16 open"},
		{"89 bytes", [][]byte{resize(list(dst), 89)}, "01/0/160 open"},
		{"9 records", [][]byte{append(length(16+9*72), make([]byte, 7*72)...)}, "81/2/16 closed"},
		{"version 2", [][]byte{edit(func(b []byte) { b[0] = 2 })}, "81/2/16 closed"},
		{"version 0", [][]byte{edit(func(b []byte) { b[0] = 0 })}, "81/2/16 closed"},
		{"opcode 0", [][]byte{op(0, true)}, "80/2/16 closed"},
		{"opcode 4", [][]byte{op(4, true)}, "84/2/16 closed"},
		{"opcode 0x0f", [][]byte{op(0x0f, true)}, "8f/2/16 closed"},
		{"status in the request", [][]byte{edit(func(b []byte) { b[2] = 99 })}, done},
		{"no records", [][]byte{list()}, "81/10/16 open"},
		{"source only", [][]byte{list(src)}, "81/10/16 open"},
		{"destination first", [][]byte{list(dst, src)}, done},
		{"two sources", [][]byte{list(src, src, dst)}, "81/7/16 open"},
		{"two destinations", [][]byte{list(src, dst, dst)}, "81/9/16 open"},
		{"both flags in one", [][]byte{list(rec(FlagSource|FlagDest, TypeIPv4, 10, 0, 0, 1))}, done},
		{"flags 0", [][]byte{list(rec(0, TypeIPv4, 10, 0, 0, 1))}, "81/10/16 open"},
		{"destination type 0", [][]byte{list(src, rec(FlagDest, 0))}, "81/10/16 open"},
		{"destination type 4", [][]byte{list(src, rec(FlagDest, TypeGID, 0xfe, 0x80))}, done},
		{"destination type 5", [][]byte{list(src, rec(FlagDest, TypeLID, 0, 5))}, done},
		{"destination type 6", [][]byte{list(src, rec(FlagDest, 6))}, "81/10/16 open"},
		{"source type 6", [][]byte{list(rec(FlagSource, 6), dst)}, "81/8/16 open"},
		{"source not local", [][]byte{list(rec(FlagSource, TypeIPv4, 203, 0, 113, 9), dst)}, "81/7/16 open"},
		{"no source, IP", [][]byte{list(dst)}, "01/0/160 open"},
		{"no source, name", [][]byte{list(rec(FlagDest, TypeName, 'x'))}, "81/10/16 open"},
		{"path record all zero", [][]byte{list(PathQuery(sa.PathRecord{}, 0))}, "81/9/16 open"},
		{"path by LID", [][]byte{list(path(func(p *sa.PathRecord) { p.SetDLID(5) }))}, done},
		{"path by LID, 87 bytes", [][]byte{resize(list(path(func(p *sa.PathRecord) { p.SetDLID(5) })), 87)}, "81/2/16 open"},
		{"query SA, two entries", [][]byte{list(verify, verify)}, "81/2/160 open"},
		{"query SA, 87 bytes", [][]byte{resize(list(verify), 87)}, "81/2/87 open"},
		{"query SA, 592 bytes", [][]byte{resize(list(verify), 592)}, "81/2/592 open"},
		{"query SA", [][]byte{list(verify)}, "81/0/88 open"},
		{"cached only, never seen", [][]byte{list(src, rec(FlagDest|FlagNoDelay, TypeIPv4, 10, 1, 0, 9))}, "01/3/16 open"},
		{"no data", [][]byte{ask(7, 4, 1)}, "01/3/16 open"},
		{"timed out", [][]byte{ask(7, 5, 1)}, "01/6/16 open"},
		{"perf, all", [][]byte{perf(0)}, "82/0/72 open"},
		{"perf, endpoint 1", [][]byte{perf(1)}, "82/0/72 open"},
		{"perf, endpoint 9", [][]byte{perf(9)}, "82/7/16 open"},
		{"endpoint 1, port 1", [][]byte{ep(1, 1)}, "83/0/160 open"},
		{"endpoint 1, any port", [][]byte{ep(1, 0)}, "83/0/160 open"},
		{"endpoint 0", [][]byte{ep(0, 1)}, "83/2/16 open"},
		{"endpoint 2", [][]byte{ep(2, 1)}, "83/2/16 open"},
		{"error, then a good request", [][]byte{list(src), good}, "81/10/16 " + done},
		{"8 entries without a source", [][]byte{list(dst, Record{}, Record{}, Record{}, Record{}, Record{}, Record{}, Record{})}, "81/2/16 open"},
		{"1 byte only, the rest is taken for its message", [][]byte{good[:1]}, "81/2/16 closed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := replies(t, s, c.want, c.chunks...); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if got := replies(t, s, done, good); got != done {
		t.Errorf("afterwards: %q", got)
	}
	t.Run("length field too large waits for the rest", func(t *testing.T) {
		c := dialServer(t, s)
		mustWrite(t, c, length(161))
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%d, %v", n, err)
		}
		c.SetReadDeadline(time.Now().Add(patience))
		mustWrite(t, c, []byte{0})
		wantAnswer(t, readReply(t, c), 7, 2)
	})
	t.Run("idle clients one byte short of a header", func(t *testing.T) {
		var idle []net.Conn
		for range 8 {
			c := dialServer(t, s)
			mustWrite(t, c, good[:15])
			idle = append(idle, c)
		}
		if got := replies(t, s, done, good); got != done {
			t.Error(got)
		}
		for _, c := range idle {
			mustWrite(t, c, good[15:])
			wantAnswer(t, readReply(t, c), 7, 2)
		}
	})
}
