// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary play another process of a test.
const roleEnv = "ACMSOCK_TEST_ROLE"

func runRole(role string) {
	switch role {
	case "many-clients":
		manyClients()
	case "few-files":
		fewFiles()
	case "bench-server":
		benchServer()
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
}

// setBacklog changes the backlog of a socket that listens.
func setBacklog(fd, n int) error { return unix.Listen(fd, n) }
