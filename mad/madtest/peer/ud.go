// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"acmd/mad"
)

// Layout of a datagram of the preload library; see peerlab's README.md.
const (
	udMagic      = 0x46565544
	udHeaderSize = 72
	udVersion    = 1
	udFlagGRH    = 1
	udFlagMcast  = 2
	udKindEvent  = 1
	udKindFault  = 2
)

// UD is a queue pair on the wire of the preload library, without verbs: a peer
// that sends what it likes. LID, GID, QPN, PKey and QKey are what its datagrams
// say of their sender; forge them at will.
type UD struct {
	LID  mad.LID
	GID  mad.GID
	QPN  mad.QPN
	PKey mad.PKey
	QKey mad.QKey

	dir, name string
	conn      *net.UnixConn
}

// Datagram is a received one.
type Datagram struct {
	LID  mad.LID
	GID  mad.GID // sender's, from the routing header
	DGID mad.GID
	QPN  mad.QPN
	DQPN mad.QPN
	QKey mad.QKey
	PKey mad.PKey
	SL   uint8
	Data []byte
}

// NewUD makes a queue pair in the directory of datagrams (FAKEVERBS_DIR).
func NewUD(t testing.TB, dir string, lid mad.LID, gid mad.GID) *UD {
	t.Helper()
	u := &UD{LID: lid, GID: gid, QPN: mad.QPN(0x800000 | rand.Uint32N(0x7f0000)), PKey: mad.DefaultPKey, QKey: mad.WellKnownQKey, dir: dir}
	u.name = queueName(lid, u.QPN)
	path := filepath.Join(dir, u.name)
	var err error
	if u.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	_ = u.conn.SetReadBuffer(4 << 20)
	t.Cleanup(func() {
		u.conn.Close()
		os.Remove(path)
		list, _ := filepath.Glob(filepath.Join(dir, "m.*", u.name))
		for _, f := range list {
			os.Remove(f)
		}
	})
	return u
}

// queueName is the file of a queue pair's socket.
func queueName(lid mad.LID, qpn mad.QPN) string {
	return fmt.Sprintf("u.%04x.%06x", uint16(lid), uint32(qpn))
}

func (u *UD) group(mgid mad.GID) string {
	return filepath.Join(u.dir, "m."+hex.EncodeToString(mgid[:]))
}

// Join makes the queue pair a member of a group.
func (u *UD) Join(t testing.TB, mgid mad.GID) {
	t.Helper()
	if err := os.MkdirAll(u.group(mgid), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(u.group(mgid), u.name), nil, 0o666); err != nil {
		t.Fatal(err)
	}
}

// packet puts a payload of any length behind a header.
func (u *UD) packet(data []byte, dlid mad.LID, dqpn mad.QPN, dgid mad.GID) []byte {
	b := make([]byte, udHeaderSize, udHeaderSize+len(data))
	be := binary.BigEndian
	be.PutUint32(b[0:], udMagic)
	b[4], b[5] = udVersion, udFlagGRH
	if dqpn == mad.MulticastQPN {
		b[5] |= udFlagMcast
	}
	be.PutUint16(b[8:], uint16(u.LID))
	be.PutUint16(b[10:], uint16(dlid))
	be.PutUint32(b[12:], uint32(u.QPN))
	be.PutUint32(b[16:], uint32(dqpn))
	be.PutUint32(b[20:], uint32(u.QKey))
	be.PutUint16(b[24:], uint16(u.PKey))
	be.PutUint16(b[26:], uint16(len(data)))
	g := b[32:]
	be.PutUint32(g[0:], 6<<28)
	be.PutUint16(g[4:], uint16(12+8+len(data)+4))
	g[6] = 0x1b
	copy(g[8:], u.GID[:])
	copy(g[24:], dgid[:])
	return append(b, data...)
}

// Multicast sends to every other member and returns how many took it.
func (u *UD) Multicast(data []byte, mgid mad.GID) (n int) {
	list, _ := os.ReadDir(u.group(mgid))
	for _, m := range list {
		if m.Name() != u.name && u.write(m.Name(), u.packet(data, 0xc001, mad.MulticastQPN, mgid)) == nil {
			n++
		}
	}
	return n
}

// Send sends to one queue pair.
func (u *UD) Send(data []byte, lid mad.LID, qpn mad.QPN, gid mad.GID) error {
	return u.write(queueName(lid, qpn), u.packet(data, lid, qpn, gid))
}

func (u *UD) write(name string, b []byte) error {
	_, err := u.conn.WriteTo(b, &net.UnixAddr{Name: filepath.Join(u.dir, name), Net: "unixgram"})
	return err
}

// Recv waits for a datagram.
func (u *UD) Recv(patience time.Duration) (d Datagram, err error) {
	var b [udHeaderSize + 4096]byte
	if err := u.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return d, err
	}
	n, err := u.conn.Read(b[:])
	if err != nil {
		return d, err
	}
	be := binary.BigEndian
	if n < udHeaderSize || be.Uint32(b[:]) != udMagic || n != udHeaderSize+int(be.Uint16(b[26:])) {
		return d, fmt.Errorf("%d bytes are no datagram", n)
	}
	return Datagram{
		LID: mad.LID(be.Uint16(b[8:])), QPN: mad.QPN(be.Uint32(b[12:])), DQPN: mad.QPN(be.Uint32(b[16:])),
		QKey: mad.QKey(be.Uint32(b[20:])), PKey: mad.PKey(be.Uint16(b[24:])), SL: b[6],
		GID: mad.GID(b[40:56]), DGID: mad.GID(b[56:72]), Data: b[udHeaderSize:n:n],
	}, nil
}

// Queues lists the queue pair numbers of a LID.
func Queues(dir string, lid mad.LID) (list []mad.QPN) {
	names, _ := filepath.Glob(filepath.Join(dir, fmt.Sprintf("u.%04x.*", uint16(lid))))
	for _, f := range names {
		var l uint16
		var q uint32
		if n, _ := fmt.Sscanf(filepath.Base(f), "u.%04x.%06x", &l, &q); n == 2 {
			list = append(list, mad.QPN(q))
		}
	}
	return list
}

// control sends a datagram that the preload library of the receiver acts on. Some
// of the queue pairs of a LID may be those of a process that was killed.
func (u *UD) control(t testing.TB, lid mad.LID, kind byte, what, arg uint32) {
	t.Helper()
	b := u.packet(nil, lid, mad.QPN(what), mad.GID{})
	b[7] = kind
	binary.BigEndian.PutUint32(b[28:], arg)
	for _, q := range Queues(u.dir, lid) {
		if u.write(queueName(lid, q), b) == nil {
			return
		}
	}
	t.Fatalf("LID %v has no queue pair", lid)
}

// Event makes the device of another process tell of an asynchronous event (enum
// ibv_event_type), with a new port state unless that is 0.
func (u *UD) Event(t testing.TB, lid mad.LID, kind uint32, state mad.State) {
	t.Helper()
	u.control(t, lid, udKindEvent, kind, uint32(state))
}

// Faults of a queue pair.
const (
	FaultReceive uint32 = iota // the queue pair goes to its error state now
	FaultSend                  // the next send fails and stops the sends
)

// Fault makes a queue pair of another process fail.
func (u *UD) Fault(t testing.TB, lid mad.LID, fault uint32) {
	t.Helper()
	u.control(t, lid, udKindFault, fault, 0)
}
