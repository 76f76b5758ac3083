// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"sync"
	"testing"
	"unsafe"

	"acmd/mad"
	"acmd/mad/ring"

	"golang.org/x/sys/unix"
)

// model behaves as the kernel does behind a umad descriptor (the kernel tests see
// the same from the real one): a queue of frames, read one an iovec, a batch ending
// at the first frame that is shorter than its iovec, and frames that do not fit
// staying queued. The descriptor is one end of a socket pair; the other end wakes
// the poller.
type model struct {
	peer int

	mu      sync.Mutex
	queue   [][]byte // frames, header first
	reads   int      // calls of readv
	sent    [][]byte
	refuse  map[uint32]unix.Errno // of a write, by low TID
	readErr unix.Errno            // of every read of a long frame
	gone    bool
}

func newModel(t testing.TB, slots int) (*Port, *model) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{peer: fds[1], refuse: map[uint32]unix.Errno{}}
	t.Cleanup(func() { unix.Close(fds[1]) })
	f, err := New(Config{SysRoot: t.TempDir(), Slots: slots, Poison: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPort(f, "umad9", fds[0], m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, m
}

// push queues frames and wakes the poller once.
func (m *model) push(frames ...[]byte) {
	m.mu.Lock()
	m.queue = append(m.queue, frames...)
	m.mu.Unlock()
	unix.Write(m.peer, []byte{0})
}

// unplug removes the device.
func (m *model) unplug() {
	m.mu.Lock()
	m.gone = true
	m.mu.Unlock()
	unix.Write(m.peer, []byte{0})
}

// one reads the first frame into b as read(2) does. The caller holds m.mu.
func (m *model) one(fd int, b []byte) (int, error) {
	if m.gone {
		return -1, unix.EIO
	}
	if len(m.queue) == 0 {
		// All tokens: a socket that is full would swallow the next wake-up.
		var token [1]byte
		for n, err := unix.Read(fd, token[:]); n > 0 && err == nil; n, err = unix.Read(fd, token[:]) {
		}
		return -1, unix.EAGAIN
	}
	f := m.queue[0]
	multi := len(f) > ring.SlotSize && f[mad.UserHeaderSize] == mad.BaseVersion
	switch {
	case len(b) < len(f) && !multi:
		return -1, unix.EINVAL
	case len(b) < len(f):
		copy(b, f)
		return -1, unix.ENOSPC
	case len(f) > ring.SlotSize && m.readErr != 0:
		return -1, m.readErr
	}
	m.queue = m.queue[1:]
	return copy(b, f), nil
}

func (m *model) readv(fd int, iov []unix.Iovec) (total int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	for i := range iov {
		n, err := m.one(fd, unsafe.Slice(iov[i].Base, int(iov[i].Len)))
		if err != nil {
			if total == 0 {
				return -1, err
			}
			break
		}
		total += n
		if n != int(iov[i].Len) {
			break
		}
	}
	return total, nil
}

func (m *model) read(fd int, b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.one(fd, b)
}

func (m *model) writev(_ int, iov []unix.Iovec) (total int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range iov {
		frame := unsafe.Slice(iov[i].Base, int(iov[i].Len))
		e := m.refuse[(*mad.Packet)(frame[mad.UserHeaderSize:]).TID().Low()]
		if m.gone {
			e = unix.EIO
		}
		if e != 0 {
			if total == 0 {
				return -1, e
			}
			break
		}
		m.sent = append(m.sent, append([]byte(nil), frame...))
		total += len(frame)
	}
	return total, nil
}

func (m *model) dead(int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gone
}

// frame makes a received frame of a MAD of size bytes that ends in its TID's low
// byte.
func frame(tid uint32, size int) []byte {
	b := make([]byte, mad.UserHeaderSize+size)
	(*mad.UserHeader)(b).SetLength(uint32(len(b)))
	b[64], b[65], b[66], b[67] = mad.BaseVersion, mad.ClassSA, mad.SAClassVersion, mad.MethodGetResp
	b[76], b[77], b[78], b[79] = byte(tid>>24), byte(tid>>16), byte(tid>>8), byte(tid)
	b[len(b)-1] = byte(tid)
	return b
}

// timedOut makes the frame of a send that got no answer.
func timedOut(tid uint32) []byte {
	b := frame(tid, mad.HeaderSize)
	h := (*mad.UserHeader)(b)
	h.SetStatus(mad.StatusTimeout)
	h.SetLength(0)
	b[67] = mad.MethodGet
	b[len(b)-1] = 0
	return b
}
