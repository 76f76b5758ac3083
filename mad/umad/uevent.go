// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// uevent is what is used of a kobject uevent (lib/kobject_uevent.c): devices, and
// the character devices that belong to them, come and go.
type uevent struct {
	action    string // "add", "remove", ...
	subsystem string // "infiniband", "infiniband_verbs", "infiniband_mad"
	name      string // last element of the device's path
}

// parseUevent reads one datagram: "ACTION@DEVPATH", then KEY=VALUE, each with a NUL.
// False: it is about something else.
func parseUevent(b []byte) (u uevent, ok bool) {
	head, rest, found := bytes.Cut(b, []byte{0})
	action, devpath, isEvent := strings.Cut(string(head), "@")
	if !found || !isEvent {
		return u, false
	}
	u.action, u.name = action, path.Base(devpath)
	for len(rest) > 0 {
		var kv []byte
		kv, rest, _ = bytes.Cut(rest, []byte{0})
		if v, is := bytes.CutPrefix(kv, []byte("SUBSYSTEM=")); is {
			u.subsystem = string(v)
		}
	}
	switch u.subsystem {
	case "infiniband", "infiniband_verbs", "infiniband_mad":
		return u, u.name != "." && u.name != "/"
	}
	return u, false
}

// kernelGroup is the multicast group of what the kernel itself sends.
const kernelGroup = 1

// openUevents makes the socket that uevents arrive on, in the runtime's poller.
func openUevents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("uevents: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("uevents: bind: %w", err)
	}
	return os.NewFile(uintptr(fd), "uevents"), nil
}

// readUevent waits for a datagram and returns it if the kernel sent it: another
// process may send to the group too.
func readUevent(f *os.File, buf []byte) (n int, kernel bool, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var from unix.Sockaddr
	var rerr error
	err = conn.Read(func(fd uintptr) bool {
		n, from, rerr = unix.Recvfrom(int(fd), buf, 0)
		return rerr != unix.EAGAIN
	})
	if err == nil {
		err = rerr
	}
	nl, ok := from.(*unix.SockaddrNetlink)
	return max(n, 0), ok && nl.Pid == 0, err
}
