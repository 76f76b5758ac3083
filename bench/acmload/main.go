// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Command acmload drives a daemon that speaks ibacm's client protocol, acmd or
// the stock ibacm, from the outside:
//
//	resolve  load: any number of connections, pipelined or not, every answer checked
//	clients  many connections, all open together, each served in turn and at once
//	fail     requests that must fail with a given status
//	probe    malformed and hostile input, and what the daemon does about it
//	sabench  path queries against the SA of a simulated fabric, without a daemon
//	ud       a bare peer on the datagram wire of peerlab's stand-in for libibverbs
//	gen      netlists, preload files and lists of destinations
//
// It has its own codec of the client protocol. That is on purpose: a load
// generator that shared the daemon's codec would agree with its mistakes.
//
// A destination is written kind:value, with kind one of ip, name, lid and gid,
// and comes with the DGID and DLID of the only right answer. A daemon is charged
// with its own processor time, taken from /proc, because wall-clock figures of a
// shared machine say little.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
)

var commands = map[string]struct {
	run  func([]string) error
	help string
}{
	"resolve": {cmdResolve, "measure resolves against a daemon"},
	"clients": {cmdClients, "open many connections and serve each"},
	"fail":    {cmdFail, "ask for what does not exist, and expect to be told"},
	"probe":   {cmdProbe, "send malformed or hostile input and report what happens"},
	"sabench": {cmdSABench, "measure path queries against the SA on a simulated fabric"},
	"ud":      {cmdUD, "a bare peer on the fakeverbs datagram wire"},
	"gen":     {cmdGen, "write netlists and preload files"},
}

func main() {
	if len(os.Args) >= 2 {
		if c, ok := commands[os.Args[1]]; ok {
			if err := c.run(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, "acmload:", err)
				os.Exit(1)
			}
			return
		}
	}
	fmt.Fprintln(os.Stderr, "usage: acmload COMMAND [flags]")
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		fmt.Fprintf(os.Stderr, "  %-8s %s\n", name, commands[name].help)
	}
	os.Exit(2)
}
