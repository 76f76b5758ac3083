// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmp

import (
	"errors"
	"fmt"

	"acmd/resolver"
)

var (
	// ErrNoMulticast is what Locate fails with at once on a port that cannot
	// carry multicast. It wraps resolver.ErrUnknown.
	ErrNoMulticast = fmt.Errorf("acm: no group on this transport: %w", resolver.ErrUnknown)
	// ErrNotJoined: the endpoint is not a member of its group; the SA's last
	// word on that is wrapped beside resolver.ErrDown.
	ErrNotJoined = errors.New("acm: multicast group is not joined")
)
