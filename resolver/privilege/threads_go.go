// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build !cgo

package privilege

import "syscall"

// everyThread makes a system call in every thread of the process, all of which Go has
// made. It has to end alike in each of them.
//
//go:uintptrescapes
func everyThread(number, a, b, c uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(number, a, b, c); errno != 0 {
		return errno
	}
	return nil
}
