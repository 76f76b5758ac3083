// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

// Names of the rendezvous files in the run directory. librdmacm looks for the
// link names, ib_acme for the real ones.
const (
	unixSocketName = "ibacm-unix.sock"
	unixLinkName   = "ibacm.sock"
	portFileName   = "ibacm-tcp.port"
	portLinkName   = "ibacm.port"
)
