// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Command acmctl asks acmd, or ibacm, for paths, counters and endpoints, and
// steers acmd over its control socket.
//
//	acmctl resolve 10.0.0.2 node7 lid:5 gid:fe80::10:3
//	acmctl perf --all
//	acmctl endpoints --json
//	acmctl flush --port mlx5_0/1
//	acmctl config | state | reload
//
// Called as ib_acme, or as "acmctl ib_acme", it takes the options and prints the
// output of rdma-core's ib_acme.
//
// Exit codes: 0 everything was done, 1 something failed, 2 usage, 3 the service
// cannot be reached. Those of ib_acme are its own: see package acmtool.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"acmd/resolver/acmtool"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := acmtool.Main(ctx, acmtool.System(), os.Args)
	stop()
	os.Exit(code)
}
