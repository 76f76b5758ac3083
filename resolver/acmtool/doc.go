// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package acmtool is the command line tool: the verbs of acmctl, and ib_acme
// with the options and the output of rdma-core's tool of that name.
//
// [Main] takes a whole command line and returns an exit code; it touches the
// machine only through [Env], so every test runs it as a user would.
//
// acmctl's exit codes: 0 everything asked for was done, 1 something failed, 2
// the command line is wrong, 3 the service cannot be reached.
//
// ib_acme's differ: 0, 1 for usage, the errno of a failed connect, else 255.
// Its output is that of the original, with these faults mended: -f u is
// accepted; a typing error is not taken for LID 0; all addresses of a service's
// name are tried; -v compares the path with the SA's field by field; a failure
// anywhere shows in the exit code; -e and -P all list every endpoint of every
// port, with one request each.
package acmtool
