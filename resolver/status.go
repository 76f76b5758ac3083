// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver

import (
	"errors"
	"fmt"
	"strconv"

	"acmd/mad"
	"acmd/mad/sa"
)

// String names a status as the client protocol does.
func (s Status) String() string {
	switch s {
	case StatusSuccess:
		return "success"
	case StatusNoMemory:
		return "no memory"
	case StatusInvalid:
		return "invalid request"
	case StatusNoData:
		return "no data"
	case StatusNotConn:
		return "not connected"
	case StatusTimedOut:
		return "timed out"
	case StatusSrcAddr:
		return "source address"
	case StatusSrcType:
		return "source type"
	case StatusDestAddr:
		return "destination address"
	case StatusDestType:
		return "destination type"
	}
	return "status " + strconv.Itoa(int(s))
}

// classStatus maps the class-specific byte of an SA status. ibacm hands the byte
// on as it is, which gives it an unrelated name in all cases but the first three;
// these keep their number, as clients may know them.
var classStatus = [...]Status{
	0:                               StatusInvalid,  // not reached: a class byte of zero is no class failure
	sa.StatusNoResources:            StatusNoMemory, // same number, and what it means
	sa.StatusRequestInvalid:         StatusInvalid,  // same number, and what it means
	sa.StatusNoRecords:              StatusNoData,   // same number, and what it means
	sa.StatusTooManyRecords:         StatusInvalid,  // the constraints do not name one path
	sa.StatusInvalidGID:             StatusNoData,   // the fabric has no such port; OpenSM says NoRecords for it
	sa.StatusInsufficientComponents: StatusInvalid,  // we or the client left out what this SA needs
	sa.StatusDenied:                 StatusNoData,   // no path for us
	sa.StatusPriority:               StatusInvalid,  // has no meaning for a path query
}

// statusOf maps a 16-bit MAD status that is not zero. The low byte comes first:
// with it set the request never got to the class (B-10: it is no success).
func statusOf(s mad.Status) Status {
	switch {
	case uint8(s)&0x01 != 0: // BUSY to the last try: no answer in time
		return StatusTimedOut
	case uint8(s)&0x02 != 0: // REDIRECT: the SA is elsewhere
		return StatusNotConn
	case s>>2&7 == 7: // a field that this SA does not accept
		return StatusInvalid
	case uint8(s) != 0: // version or method not supported: who answered is no SA
		return StatusNotConn
	}
	if c := int(s >> 8); c < len(classStatus) {
		return classStatus[c]
	}
	return StatusInvalid
}

// saFailure maps the outcome of a query that did not succeed to what the client
// is told, and says why; StatusSuccess and nil for one that did.
func saFailure(r *SAResult) (Status, error) {
	if r.Status != 0 {
		err := r.Err
		if err == nil {
			err = fmt.Errorf("SA: status 0x%04x (%s)", uint16(r.Status), sa.StatusText(r.Status))
		}
		return statusOf(r.Status), err
	}
	if r.Err == nil && !r.Valid {
		return StatusTimedOut, ErrTimeout
	}
	if r.Err == nil {
		return StatusSuccess, nil
	}
	return kindOf(r.Err, StatusTimedOut), r.Err
}

// kindOf maps an error to a status by what it wraps.
func kindOf(err error, other Status) Status {
	switch {
	case errors.Is(err, ErrOverload):
		return StatusNoMemory
	case errors.Is(err, ErrDown):
		return StatusNotConn
	case errors.Is(err, ErrTimeout):
		return StatusTimedOut
	}
	return other
}

// Failures that are found without asking anybody; they are shared values, as the
// hot path does not allocate.
var (
	errNoPort       = errors.New("no active InfiniBand port")
	errNoSource     = errors.New("source address is not local")
	errNoDest       = errors.New("no destination")
	errNeedsSource  = errors.New("a destination that is no IP address needs a source")
	errNoPathSource = errors.New("no local endpoint matches source, partition or subnet prefix")
	errBadKind      = errors.New("unknown kind of query")
	errNoDelay      = errors.New("not in the cache, looking it up")
	errFlights      = errors.New("too many lookups under way")
	errWaiters      = errors.New("too many queries are waiting")
	errClosed       = errors.New("shutting down")
	errRemembered   = [...]error{
		StepNone:    errors.New("failed a moment ago"),
		StepAddress: errors.New("address step: failed a moment ago"),
		StepRoute:   errors.New("route step: failed a moment ago"),
	}
	errLate = [...]error{
		StepNone:    errors.New("no result within the request's time"),
		StepAddress: errors.New("address step: no result within the request's time"),
		StepRoute:   errors.New("route step: no result within the request's time"),
	}
)
