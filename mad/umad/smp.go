// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"crypto/rand"
	"encoding/binary"
	"path/filepath"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

const (
	attrPortInfo = 0x0015 // IBTA vol. 1, 14.2.5.6
	smpTimeout   = 300 * time.Millisecond
	// smpAge bounds how long an answer is believed without a visible change.
	smpAge = time.Minute
	// defaultSubnetTimeout is what OpenSM sets: 4.096 us x 2^18, one second.
	defaultSubnetTimeout = 18
)

// smpInfo is what sysfs does not tell, with the state it was read under.
type smpInfo struct {
	mtu           mad.MTU
	subnetTimeout uint8
	under         portState
	at            time.Time
}

type portState struct {
	state mad.State
	lid   mad.LID
	smlid mad.LID
	rate  mad.Rate
}

// complete fills in MTU and SubnetTimeout. They change only together with
// something that sysfs shows, so a poll costs no MAD.
func (f *Fabric) complete(device string, p *transport.PortInfo) {
	key, now := portKey{device, p.Num}, time.Now()
	under := portState{p.State, p.LID, p.SMLID, p.Rate}
	f.mu.Lock()
	info, ok := f.smp[key]
	f.mu.Unlock()
	if !ok || info.under != under || now.Sub(info.at) > smpAge {
		fresh, err := f.askPortInfo(device, p.Num)
		switch {
		case err == nil:
			info = fresh
		case !ok:
			// Without the right to use QP0 or with a silent SMA: no active MTU is
			// known, and the usual time-out is assumed.
			info = smpInfo{subnetTimeout: defaultSubnetTimeout}
		}
		info.under, info.at = under, now
		f.mu.Lock()
		f.smp[key] = info
		f.mu.Unlock()
	}
	p.MTU, p.SubnetTimeout = info.mtu, info.subnetTimeout
}

// portInfoRequest fills a slot-sized frame with a directed-route SMP of no hops:
// it is answered by the local port itself, whatever its state.
func portInfoRequest(frame []byte, agent uint32, tid uint32) {
	clear(frame)
	h := (*mad.UserHeader)(frame[:mad.UserHeaderSize])
	h.SetAgent(agent)
	h.SetTimeoutMS(uint32(smpTimeout / time.Millisecond))
	h.SetLID(0xffff)
	m := (*mad.Packet)(frame[mad.UserHeaderSize:])
	m.Init(mad.ClassSubnDir, 1, mad.MethodGet)
	m.SetTID(mad.TID(tid))
	m.SetAttrID(attrPortInfo)
	// AttrMod 0: the port that the SMP came in on. DrSLID and DrDLID permissive.
	binary.BigEndian.PutUint32(m[32:], 0xffffffff)
}

// parsePortInfo reads an answer's PortInfo (at offset 64 of an SMP).
func parsePortInfo(m *mad.Packet) smpInfo {
	pi := m[64:]
	return smpInfo{mtu: mad.MTU(pi[36] >> 4), subnetTimeout: pi[51] & 0x1f}
}

// askPortInfo sends the SMP on a descriptor of its own.
func (f *Fabric) askPortInfo(device string, port uint8) (smpInfo, error) {
	name, err := f.sys.umadName(device, port)
	if err != nil {
		return smpInfo{}, err
	}
	fd, err := openUmad(filepath.Join(f.cfg.DevRoot, "infiniband", name))
	if err != nil {
		return smpInfo{}, err
	}
	defer unix.Close(fd)
	agent, err := register(fd, newRegisterRequest(0, mad.ClassSubnDir, 1, 0))
	if err != nil {
		return smpInfo{}, err
	}
	var (
		frame [ring.SlotSize]byte
		seed  [4]byte
	)
	_, _ = rand.Read(seed[:]) // never fails
	tid := binary.NativeEndian.Uint32(seed[:]) | 1
	portInfoRequest(frame[:], agent, tid)
	if _, err := unix.Write(fd, frame[:]); err != nil {
		return smpInfo{}, err
	}
	for end := time.Now().Add(2 * smpTimeout); ; {
		wait := time.Until(end)
		if wait <= 0 {
			return smpInfo{}, unix.ETIMEDOUT
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, int(wait/time.Millisecond)+1); err != nil && err != unix.EINTR {
			return smpInfo{}, err
		}
		_, err := unix.Read(fd, frame[:])
		if err == unix.EAGAIN || err == unix.EINTR {
			continue
		}
		if err != nil {
			return smpInfo{}, err
		}
		h, m := (*mad.UserHeader)(frame[:mad.UserHeaderSize]), (*mad.Packet)(frame[mad.UserHeaderSize:])
		if h.Status() != 0 {
			return smpInfo{}, unix.Errno(h.Status())
		}
		// Status of a directed-route SMP: bit 15 is the direction.
		if m.TID().Low() == tid && m.AttrID() == attrPortInfo && m.Method() == mad.MethodGetResp && m.Status()&0x7fff == 0 {
			return parsePortInfo(m), nil
		}
	}
}
