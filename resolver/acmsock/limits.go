// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"
)

// descriptorReserve is what the daemon needs beside its clients: devices,
// files, other doors.
const descriptorReserve = 128

// RaiseNoFile raises the soft limit of open files to the hard one and returns
// it. It warns when that does not suffice for maxClients connections: further
// clients will be turned away. Call it once, from main.
func RaiseNoFile(log *slog.Logger, maxClients int) (uint64, error) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	if lim.Cur < lim.Max {
		lim.Cur = lim.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
			return 0, fmt.Errorf("raise limit of open files to %d: %w", lim.Max, err)
		}
	}
	if lim.Cur < uint64(maxClients)+descriptorReserve {
		log.Warn("limit of open files is below what max_clients needs; further clients will be rejected",
			"limit", lim.Cur, "max_clients", maxClients)
	}
	return lim.Cur, nil
}
