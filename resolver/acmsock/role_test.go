// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"fmt"
	"os"
)

// roleEnv makes the test binary play another process of a test.
const roleEnv = "ACMSOCK_TEST_ROLE"

func runRole(role string) {
	switch role {
	case "bench-server":
		benchServer()
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		os.Exit(2)
	}
}
