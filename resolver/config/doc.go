// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package config reads the service's two configuration files, ibacm_opts.cfg
// and ibacm_addr.cfg, in the form that ibacm's sites already have, and writes
// the files that ib_acme -O and ib_acme -A generate.
//
// The options file becomes a [Settings]: typed values, each with its origin
// (default, file and line, command line). A file with every default of ibacm
// written down loads without a remark. What has no effect, is unknown, is given
// twice or does not parse is a [Problem] with file and line; it never changes
// another option. Check mode turns every problem into an error.
//
// Some old words mean something better than they did: sa_depth and
// resolve_depth 1, the value every generated file has, stand for an automatic
// window; timeout is the longest gap between two tries and retries the least
// number of further tries of one question.
//
// The package also opens the two files whose mode matters for security: the log
// ([OpenLog]) and the lock file ([Lock]). Both ignore the umask and refuse to
// follow a symbolic link.
//
// A Settings is not changed after Load and may then be shared; every other
// function may be called from any goroutine.
package config
