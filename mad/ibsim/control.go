// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"acmd/mad"
)

// A control message (ibsim, include/ibsim.h) is 80 bytes in host order: magic,
// client number, type, bytes of data used, 64 bytes of data.
const (
	controlSize     = 80
	controlDataSize = 64
	controlMagic    = 0xdeadbeef

	maxClients = 10
)

// controlTime bounds a round trip. The simulator answers from one loop that may
// be busy with a sweep of thousands of nodes.
const controlTime = 3 * time.Second

type controlType uint32

const (
	ctlError       controlType = 0
	ctlConnect     controlType = 1
	ctlDisconnect  controlType = 2
	ctlGetNodeInfo controlType = 7
	ctlGetPortInfo controlType = 8
	ctlGetPKeys    controlType = 10
	ctlNothing     controlType = 99 // types that the simulator does not know come back unchanged
)

func (c controlType) String() string {
	switch c {
	case ctlConnect:
		return "connect"
	case ctlDisconnect:
		return "disconnect"
	case ctlGetNodeInfo:
		return "get node info"
	case ctlGetPortInfo:
		return "get port info"
	case ctlGetPKeys:
		return "get P_Keys"
	}
	return fmt.Sprintf("control type %d", uint32(c))
}

type controlData [controlDataSize]byte

var he = binary.NativeEndian

// appendControl encodes a message whose data uses n bytes.
func appendControl(b []byte, client uint32, t controlType, data *controlData, n int) []byte {
	b = he.AppendUint32(b, controlMagic)
	b = he.AppendUint32(b, client)
	b = he.AppendUint32(b, uint32(t))
	b = he.AppendUint32(b, uint32(n))
	return append(b, data[:]...)
}

var errBadControl = errors.New("malformed control message")

// parseControl decodes a message. A length beyond the data is refused.
func parseControl(b []byte) (client uint32, t controlType, data controlData, err error) {
	if len(b) != controlSize {
		return 0, 0, data, fmt.Errorf("%w: %d bytes", errBadControl, len(b))
	}
	if m := he.Uint32(b); m != controlMagic {
		return 0, 0, data, fmt.Errorf("%w: magic %#x", errBadControl, m)
	}
	if n := he.Uint32(b[12:]); n > controlDataSize {
		return 0, 0, data, fmt.Errorf("%w: %d bytes of data", errBadControl, n)
	}
	return he.Uint32(b[4:]), controlType(he.Uint32(b[8:])), controlData(b[16:]), nil
}

// clientInfoSize is the size of what CONNECT sends: id, queue pair, issm flag,
// node identifier.
const clientInfoSize = 44

func clientInfo(id uint32, qp mad.QPN, issm bool, node string) (d controlData) {
	he.PutUint32(d[0:], id)
	he.PutUint32(d[4:], uint32(qp))
	if issm {
		he.PutUint32(d[8:], 1)
	}
	copy(d[12:12+maxNodeLen], node)
	return d
}

// errRefused is the simulator's answer to a CONNECT that it cannot serve. It
// does not say why.
var errRefused = errors.New("refused")

// drainTime is how often a round trip empties a data socket that nobody reads.
const drainTime = 5 * time.Millisecond

// roundTrip sends a message and returns the data of its answer. Answers that
// came too late for an earlier message, and malformed ones, are passed over
// until the time is up; the number of messages looked at is bounded by it, too.
//
// The simulator may be stuck handing answers to our own data socket, and not see
// the message. Without a reader the socket is emptied here.
func (l *link) roundTrip(t controlType, data *controlData, n int) (controlData, error) {
	var buf [controlSize + 1]byte
	end := time.Now().Add(l.limit)
	if err := l.ctl.SetDeadline(end); err != nil {
		return controlData{}, err
	}
	if _, err := l.ctl.Write(appendControl(buf[:0], l.client, t, data, n)); err != nil {
		return controlData{}, fmt.Errorf("%v: %w", t, err)
	}
	return l.await(t, end)
}

// await reads until the answer to a message of type t.
func (l *link) await(t controlType, end time.Time) (controlData, error) {
	var buf [controlSize + 1]byte
	var bad error
	for {
		now := time.Now()
		l.ctl.SetReadDeadline(now.Add(min(drainTime, end.Sub(now))))
		k, err := l.ctl.Read(buf[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && now.Before(end) {
			if l.unread.Load() {
				l.drain()
			}
			continue
		}
		if err != nil {
			if bad != nil && errors.Is(err, os.ErrDeadlineExceeded) {
				err = bad
			}
			return controlData{}, fmt.Errorf("%v: %w", t, err)
		}
		_, got, answer, err := parseControl(buf[:k])
		switch {
		case err != nil:
			bad = err
		case got == t:
			return answer, nil
		case got == ctlError && t == ctlConnect:
			return controlData{}, errRefused
		}
	}
}
