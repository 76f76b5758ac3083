// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build cgo

package privilege

// #include "threads.h"
import "C"

import "golang.org/x/sys/unix"

// everyThread makes a system call in every thread of the process, whoever has made
// it: Go's own way does not know the threads of C.
//
//go:uintptrescapes
func everyThread(number, a, b, c uintptr) error {
	if errno := C.acm_every_thread(C.long(number), C.long(a), C.long(b), C.long(c)); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}
