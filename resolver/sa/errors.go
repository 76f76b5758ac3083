// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"errors"
	"fmt"

	"acmd/mad"
	madsa "acmd/mad/sa"
)

var (
	// ErrTimeout: no usable answer within the flight's life.
	ErrTimeout = errors.New("SA did not answer")
	// ErrNoSM: the port is not active or knows no SM; nothing was sent.
	ErrNoSM = errors.New("no SM")
	// ErrNoSA: what lives at the SM's LID has no subnet administrator.
	ErrNoSA = errors.New("no SA at the SM's LID")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("SA client is closed")
	// ErrQueueFull: Config.Queue requests are in hand.
	ErrQueueFull = errors.New("SA request queue is full")
	// ErrQuery: the query cannot be sent as it is.
	ErrQuery = errors.New("invalid SA query")
	// ErrNoRecords is matched by a StatusError with class status 3.
	ErrNoRecords = errors.New("SA has no records")
	// ErrBusy is matched by a StatusError with the BUSY bit.
	ErrBusy = errors.New("SA is busy")
)

// StatusError is an answer with a status that is not success. errors.Is matches
// ErrNoRecords and ErrBusy.
type StatusError struct{ Status mad.Status }

// Error names the status; the low byte wins, as it says that the class was not
// reached at all.
func (e *StatusError) Error() string {
	return fmt.Sprintf("SA answered status 0x%04x (%s)", uint16(e.Status), madsa.StatusText(e.Status))
}

// Is makes errors.Is work for the two statuses that callers branch on.
func (e *StatusError) Is(target error) bool {
	switch target {
	case ErrBusy:
		return e.Status&mad.StatusBusy != 0
	case ErrNoRecords:
		return isNoRecords(e.Status)
	}
	return false
}

// isNoRecords is strict about the low byte: with any common bit set, the class
// byte means nothing.
func isNoRecords(s mad.Status) bool {
	return uint8(s) == 0 && s.Class() == madsa.StatusNoRecords
}
