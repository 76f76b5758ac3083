// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"os"
	"path/filepath"
	"strings"

	"acmd/resolver/config"
	"acmd/resolver/privilege"

	"golang.org/x/sys/unix"
)

// access is a file or directory that the daemon opens, makes or removes something in
// when it runs already.
type access struct {
	path string
	mode uint32 // unix.R_OK and so on
}

// laterFiles are those that a reload, a device that comes back, the port file or the
// end of the daemon needs. What does not exist is not looked at.
func (d *Daemon) laterFiles() (list []access) {
	add := func(mode uint32, paths ...string) {
		for _, p := range paths {
			if p != "" {
				list = append(list, access{p, mode})
			}
		}
	}
	s := d.first
	add(unix.R_OK, d.opts.OptionsFile, d.opts.AddressFile)
	if s.AddrPreload {
		add(unix.R_OK, s.AddrDataFile)
	}
	if s.RoutePreload == config.PreloadFile {
		add(unix.R_OK, s.RouteDataFile)
	}
	add(unix.W_OK|unix.X_OK, d.opts.RunDir)
	if s.LogFile != "stdout" && s.LogFile != "stderr" {
		add(unix.W_OK, s.LogFile)
		add(unix.W_OK|unix.X_OK, filepath.Dir(s.LogFile))
	}
	if strings.HasPrefix(s.MetricsAddr, "/") {
		add(unix.W_OK|unix.X_OK, filepath.Dir(s.MetricsAddr))
	}
	if strings.HasPrefix(d.opts.Fabric, "umad") {
		for _, pattern := range []string{"umad*", "uverbs*"} {
			nodes, _ := filepath.Glob(filepath.Join(devices, pattern)) // the pattern is right
			add(unix.R_OK|unix.W_OK, nodes...)
		}
	}
	return list
}

// devices is where udev puts the device nodes of ib_umad and ib_uverbs.
const devices = "/dev/infiniband"

func (a access) try() error {
	return os.NewSyscallError("access", unix.Faccessat(unix.AT_FDCWD, a.path, a.mode, unix.AT_EACCESS))
}

// outOfReach returns the first of the files that can be reached now and not with the
// capabilities of keep: it is another user's, or its mode keeps its owner out.
func outOfReach(keep privilege.Set, with withhold, files []access) (path string) {
	var reached []access
	for _, f := range files {
		if f.try() == nil {
			reached = append(reached, f)
		}
	}
	err := with(keep, func() error {
		for _, f := range reached {
			if f.try() != nil {
				path = f.path
				break
			}
		}
		return nil
	})
	if err != nil {
		return "" // what cannot be tried is not kept
	}
	return path
}
