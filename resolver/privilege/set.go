// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package privilege

import (
	"fmt"
	"strings"
)

// Set is a set of capabilities, as the kernel writes it: bit N is capability N.
type Set uint64

// Of makes a set of the numbers that golang.org/x/sys/unix calls CAP_*.
func Of(caps ...int) (s Set) {
	for _, c := range caps {
		s |= 1 << c
	}
	return s
}

// Has tells whether all of other are in the set.
func (s Set) Has(other Set) bool { return s&other == other }

// names are those of linux/capability.h, by number.
var names = strings.Fields(`
	cap_chown cap_dac_override cap_dac_read_search cap_fowner cap_fsetid cap_kill cap_setgid cap_setuid
	cap_setpcap cap_linux_immutable cap_net_bind_service cap_net_broadcast cap_net_admin cap_net_raw cap_ipc_lock cap_ipc_owner
	cap_sys_module cap_sys_rawio cap_sys_chroot cap_sys_ptrace cap_sys_pacct cap_sys_admin cap_sys_boot cap_sys_nice
	cap_sys_resource cap_sys_time cap_sys_tty_config cap_mknod cap_lease cap_audit_write cap_audit_control cap_setfcap
	cap_mac_override cap_mac_admin cap_syslog cap_wake_alarm cap_block_suspend cap_audit_read cap_perfmon cap_bpf
	cap_checkpoint_restore`)

// Names lists the capabilities as capabilities(7) calls them, in lower case; one that
// is newer than this list by its number. It is never nil.
func (s Set) Names() []string {
	list := []string{}
	for c := range 64 {
		switch {
		case !s.Has(Of(c)):
		case c < len(names):
			list = append(list, names[c])
		default:
			list = append(list, fmt.Sprintf("cap_%d", c))
		}
	}
	return list
}

// String is the names with commas between them, or "none".
func (s Set) String() string {
	if s == 0 {
		return "none"
	}
	return strings.Join(s.Names(), ",")
}
