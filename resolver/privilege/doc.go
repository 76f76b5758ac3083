// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package privilege looks at the capabilities of the process (capabilities(7)) and
// gives up those that are not needed any more.
//
// The kernel keeps capabilities for each thread, and Go runs any goroutine on any
// thread: [Keep] changes all of them, in binaries with cgo too, and looks at each
// afterwards. [With] changes those of one thread for a while, to try what works
// without a capability before it is gone for good.
package privilege
