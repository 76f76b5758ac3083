// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"acmd/mad"
	"acmd/mad/ring"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

const (
	attrPortInfo = 0x0015 // IBTA vol. 1, 14.2.5.6
	smpTimeout   = 300 * time.Millisecond
	smpAtATime   = 16
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

// completeAll fills in MTU and SubnetTimeout of every InfiniBand port that is at
// least initialised, and forgets ports that are no more.
func (f *Fabric) completeAll(list []transport.Device) {
	var wait sync.WaitGroup
	defer wait.Wait()
	// An SMA that keeps silent, as those of some virtual functions do, costs its
	// time-out; hundreds of them must not cost it one after the other.
	slots := make(chan struct{}, smpAtATime)
	seen := make(map[portKey]bool)
	for i := range list {
		for j := range list[i].Ports {
			p, key := &list[i].Ports[j], portKey{list[i].Name, list[i].Ports[j].Num}
			if p.LinkLayer != transport.LinkInfiniBand || p.State < mad.PortInit {
				continue
			}
			seen[key] = true
			if f.known(key, p) {
				continue
			}
			slots <- struct{}{}
			wait.Go(func() {
				f.complete(key, p)
				<-slots
			})
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.smp {
		if !seen[key] {
			delete(f.smp, key)
		}
	}
}

// stateOf is the state that an answer is valid for: MTU and SubnetTimeout seldom
// change without something that sysfs shows, so that a poll costs no MAD.
func stateOf(p *transport.PortInfo) portState {
	return portState{p.State, p.LID, p.SMLID, p.Rate}
}

// known fills in what an earlier answer said, if that still holds.
func (f *Fabric) known(key portKey, p *transport.PortInfo) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, ok := f.smp[key]
	if !ok || info.under != stateOf(p) || time.Since(info.at) > smpAge {
		return false
	}
	p.MTU, p.SubnetTimeout = info.mtu, info.subnetTimeout
	return true
}

// complete asks the port's SMA. Without the right to use QP0, or with a silent
// SMA, the last answer stands; without one the MTU is unknown and the usual
// time-out is assumed.
func (f *Fabric) complete(key portKey, p *transport.PortInfo) {
	info, err := f.askPortInfo(key.device, key.port)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		var ok bool
		if info, ok = f.smp[key]; !ok {
			info = smpInfo{subnetTimeout: defaultSubnetTimeout}
		}
	}
	info.under, info.at = stateOf(p), time.Now()
	f.smp[key] = info
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
		if info, ok, err := portInfoAnswer(frame[:], tid); ok || err != nil {
			return info, err
		}
	}
}

// portInfoAnswer looks at a received frame; ok is false for one that answers
// something else.
func portInfoAnswer(frame []byte, tid uint32) (info smpInfo, ok bool, err error) {
	h, m := (*mad.UserHeader)(frame), (*mad.Packet)(frame[mad.UserHeaderSize:])
	if m.TID().Low() != tid || m.AttrID() != attrPortInfo {
		return info, false, nil
	}
	if h.Status() != 0 {
		return info, false, unix.Errno(h.Status())
	}
	// Bit 15 of a directed-route SMP's status is its direction.
	if m.Method() != mad.MethodGetResp || m.Status()&0x7fff != 0 {
		return info, false, fmt.Errorf("PortInfo: method 0x%02x, status 0x%04x", m.Method(), uint16(m.Status()))
	}
	return parsePortInfo(m), true, nil
}
