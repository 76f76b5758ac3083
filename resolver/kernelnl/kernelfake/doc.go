// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package kernelfake is the kernel's end of resolver/kernelnl in memory: it asks
// as the kernel's SA client does, judges answers as that does (sa_query.c and
// addr.c of Linux 6.1 and 6.12, as observed), and waits no longer. Its time is
// that of package time, so it works inside a testing/synctest bubble.
package kernelfake
