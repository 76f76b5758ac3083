// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A bare peer on fakeverbs' datagram wire: it shows that a process without
// verbs can take part in the multicast address protocol with stock ibacm.
const (
	udMagic = 0x46565544
	udHdr   = 72
	udQkey  = 0x80010000
	madLen  = 256
)

type udPort struct {
	dir  string
	lid  uint16
	gid  net.IP
	qpn  uint32
	conn *net.UnixConn
	path string
}

// udOpen makes a queue pair: a socket file named after LID and QP number.
func udOpen(dir string, lid int, gid string) (*udPort, error) {
	p := &udPort{dir: dir, lid: uint16(lid), gid: net.ParseIP(gid).To16(), qpn: 0x800000 | uint32(os.Getpid())&0xffff}
	if len(p.gid) != 16 {
		return nil, fmt.Errorf("%q is not a GID", gid)
	}
	p.path = filepath.Join(dir, fmt.Sprintf("u.%04x.%06x", lid, p.qpn))
	var err error
	p.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: p.path, Net: "unixgram"})
	return p, err
}

func (p *udPort) groupFile(mgid []byte) string {
	return filepath.Join(p.dir, "m."+hex.EncodeToString(mgid), filepath.Base(p.path))
}

// join makes the port a member of a group, which is a file in its directory.
func (p *udPort) join(mgid []byte) error {
	f := p.groupFile(mgid)
	if err := os.MkdirAll(filepath.Dir(f), 0o777); err != nil {
		return err
	}
	return os.WriteFile(f, nil, 0o666)
}

func (p *udPort) close(mgid []byte) {
	os.Remove(p.groupFile(mgid))
	p.conn.Close()
	os.Remove(p.path)
}

// packet wraps a MAD; dgid is the multicast GID when dqpn is 0xffffff.
func (p *udPort) packet(mad []byte, dlid uint16, dqpn uint32, dgid []byte) []byte {
	b := make([]byte, udHdr+len(mad))
	be := binary.BigEndian
	be.PutUint32(b[0:], udMagic)
	b[4], b[5] = 1, 1 // version, GRH present
	if dqpn == 0xffffff {
		b[5] |= 2
	}
	be.PutUint16(b[8:], p.lid)
	be.PutUint16(b[10:], dlid)
	be.PutUint32(b[12:], p.qpn)
	be.PutUint32(b[16:], dqpn)
	be.PutUint32(b[20:], udQkey)
	be.PutUint16(b[24:], 0xffff)
	be.PutUint16(b[26:], uint16(len(mad)))
	g := b[32:]
	be.PutUint32(g[0:], 6<<28)
	be.PutUint16(g[4:], uint16(12+8+len(mad)+4))
	g[6] = 0x1b
	copy(g[8:], p.gid)
	copy(g[24:], dgid)
	copy(b[udHdr:], mad)
	return b
}

// multicast sends to every other member and counts those who took it.
func (p *udPort) multicast(mad, mgid []byte) (int, error) {
	peers, err := filepath.Glob(filepath.Join(p.dir, "m."+hex.EncodeToString(mgid), "u.*"))
	n := 0
	for _, f := range peers {
		name := filepath.Base(f)
		if name == filepath.Base(p.path) {
			continue
		}
		to := &net.UnixAddr{Name: filepath.Join(p.dir, name), Net: "unixgram"}
		if _, err := p.conn.WriteTo(p.packet(mad, 0xc001, 0xffffff, mgid), to); err == nil {
			n++
		}
	}
	return n, err
}

// describe prints the addresses and the ACM message of a datagram.
func describe(b []byte) string {
	be := binary.BigEndian
	m := b[udHdr:]
	r := m[16:]
	return fmt.Sprintf("slid %d src_qpn %#x dst_qpn %#x pkey %#x qkey %#x len %d sgid %v dgid %v\n"+
		"  mad: base %d class %#x version %d method %#x status %#x control %#x tid %#x\n"+
		"  rec: dest type %d len %d, src type %d len %d, gids %d, rr %d id %d, dest %q, src %q, gid[0] %v",
		be.Uint16(b[8:]), be.Uint32(b[12:]), be.Uint32(b[16:]), be.Uint16(b[24:]), be.Uint32(b[20:]), be.Uint16(b[26:]),
		net.IP(b[40:56]), net.IP(b[56:72]),
		m[0], m[1], m[2], m[3], be.Uint16(m[4:]), be.Uint16(m[6:]), be.Uint64(m[8:]),
		r[0], r[1], r[2], r[3], r[4], r[5], r[6], strings.TrimRight(string(r[8:72]), "\x00"),
		strings.TrimRight(string(r[72:136]), "\x00"), net.IP(r[136:152]))
}

// udFlags is the command line of "ud".
type udFlags struct {
	dir, gid, mgid, src, dst string
	lid, n, typ, state       int
	wait                     time.Duration
}

func cmdUD(args []string) error {
	var u udFlags
	fs := flag.NewFlagSet("ud", flag.ExitOnError)
	fs.StringVar(&u.dir, "dir", "", "fakeverbs directory (FAKEVERBS_DIR)")
	fs.IntVar(&u.lid, "lid", 0, "own LID")
	fs.StringVar(&u.gid, "gid", "", "own GID")
	fs.StringVar(&u.mgid, "mgid", "ff15:4001:ffff:3:400::", "multicast group")
	fs.StringVar(&u.src, "src", "name:udpeer", "own address")
	fs.StringVar(&u.dst, "dst", "", "address to resolve")
	fs.IntVar(&u.n, "n", 1, "serve: requests to answer before leaving")
	fs.IntVar(&u.typ, "type", 17, "event: ibv_event_type (9 port active, 10 port error, 17 reregister)")
	fs.IntVar(&u.state, "state", 0, "event: new port state, 0 to keep it")
	fs.DurationVar(&u.wait, "wait", 5*time.Second, "time to wait")
	if len(args) == 0 {
		return errUDUsage
	}
	fs.Parse(args[1:])
	switch args[0] {
	case "event":
		return udEvent(&u)
	case "resolve", "serve":
		return udPeer(&u, args[0])
	}
	return errUDUsage
}

var errUDUsage = errors.New("usage: acmload ud resolve | serve | event")

// udEvent injects an asynchronous event into every queue pair of a LID.
func udEvent(u *udFlags) error {
	var b [udHdr]byte
	binary.BigEndian.PutUint32(b[0:], udMagic)
	b[4], b[7] = 1, 1
	binary.BigEndian.PutUint32(b[16:], uint32(u.typ))
	binary.BigEndian.PutUint32(b[28:], uint32(u.state))
	peers, err := filepath.Glob(filepath.Join(u.dir, fmt.Sprintf("u.%04x.*", u.lid)))
	if err == nil && len(peers) == 0 {
		err = fmt.Errorf("no queue pair of LID %d in %q", u.lid, u.dir)
	}
	for _, f := range peers {
		c, e := net.Dial("unixgram", f)
		if e == nil {
			_, e = c.Write(b[:])
			c.Close()
		}
		err = errors.Join(err, e)
	}
	return err
}

// udPeer joins the group and asks or answers.
func udPeer(u *udFlags, what string) error {
	p, err := udOpen(u.dir, u.lid, u.gid)
	if err != nil {
		return err
	}
	mgid := net.ParseIP(u.mgid).To16()
	if len(mgid) != 16 {
		return fmt.Errorf("%q is not a GID", u.mgid)
	}
	if err := p.join(mgid); err != nil {
		return err
	}
	defer p.close(mgid)
	self, err := parseEndpoint(u.src, false)
	if err != nil {
		return err
	}
	p.conn.SetReadDeadline(time.Now().Add(u.wait))
	if what == "serve" {
		return p.serve(&self, mgid, u.n)
	}
	dst, err := parseEndpoint(u.dst, true)
	if err != nil {
		return err
	}
	return p.resolve(&self, &dst, mgid)
}

// resolve asks the group for dst and prints the answer.
func (p *udPort) resolve(self, dst *endpoint, mgid []byte) error {
	m := make([]byte, madLen)
	m[0], m[1], m[2], m[3] = 1, 0x2c, 1, 1
	binary.BigEndian.PutUint16(m[6:], 1)
	binary.BigEndian.PutUint64(m[8:], 0x1122334455667788)
	r := m[16:]
	r[0], r[1], r[2], r[3], r[4] = byte(dst.typ), addrLen, byte(self.typ), addrLen, 1
	copy(r[8:], dst.info[:])
	copy(r[72:], self.info[:])
	copy(r[136:], mgid)
	begin := time.Now()
	sent, err := p.multicast(m, mgid)
	if err != nil {
		return err
	}
	buf := make([]byte, 8192)
	k, err := p.conn.Read(buf)
	if err != nil {
		return fmt.Errorf("sent to %d members: %w", sent, err)
	}
	if k < udHdr+madLen {
		return fmt.Errorf("answer of %d bytes", k)
	}
	fmt.Printf("sent to %d members, answer after %v:\n%s\n%s", sent, time.Since(begin).Round(time.Microsecond), describe(buf[:k]), hex.Dump(buf[udHdr:k]))
	return nil
}

// serve answers n requests for self.
func (p *udPort) serve(self *endpoint, mgid []byte, n int) error {
	buf := make([]byte, 8192)
	for i := 0; i < n; {
		k, err := p.conn.Read(buf)
		if err != nil {
			return err
		}
		b := buf[:k]
		if k < udHdr+madLen {
			continue
		}
		m := b[udHdr:]
		if m[1] != 0x2c || m[3] != 1 || m[16] != byte(self.typ) || [64]byte(m[24:88]) != self.info {
			continue
		}
		fmt.Printf("request: %s\n%s", describe(b), hex.Dump(m[:madLen]))
		a := make([]byte, madLen)
		copy(a, m[:16])
		a[3] = 0x81
		a[16+4] = 1
		copy(a[16+136:], mgid)
		slid, sqp := binary.BigEndian.Uint16(b[8:]), binary.BigEndian.Uint32(b[12:])
		to := &net.UnixAddr{Name: filepath.Join(p.dir, fmt.Sprintf("u.%04x.%06x", slid, sqp)), Net: "unixgram"}
		if _, err := p.conn.WriteTo(p.packet(a, slid, sqp, b[40:56]), to); err != nil {
			return err
		}
		i++
	}
	return nil
}
