// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Port is an InfiniBand port for which names are made up.
type Port struct {
	Device string
	Port   uint8 // from 1
	Active bool
}

// GenerateAddrs makes the names that ib_acme -A writes, without the file: HOST
// (the host name up to its first dot) for the first active port, HOST-1, HOST-2
// ... for every port in the given order, each on the first entry of the port's
// P_Key table.
func GenerateAddrs(hostname string, ports []Port) []AddrLine {
	host, _, _ := strings.Cut(hostname, ".")
	lines := make([]AddrLine, 0, len(ports)+1)
	named := false
	for i, p := range ports {
		if p.Active && !named {
			named = true
			lines = append(lines, AddrLine{Addr: host, Device: p.Device, Port: p.Port})
		}
		lines = append(lines, AddrLine{Addr: host + "-" + strconv.Itoa(i+1), Device: p.Device, Port: p.Port})
	}
	return lines
}

const addrHeader = `# Names of this node's InfiniBand endpoints (ibacm_addr.cfg).
# Written by ib_acme -A; edit it as you like.
#
# One line per name:
#
#   name device port pkey
#
# name    up to 64 bytes; upper and lower case are the same. IP addresses come
#         from the network interfaces; they are accepted here only with
#         support_ips_in_addr_cfg 1 in ibacm_opts.cfg.
# device  as in /sys/class/infiniband
# port    from 1
# pkey    partition key in hex, or "default" for the first one in the table
#
# An endpoint may have any number of names:
#
#   node7      mlx5_0 1 default
#   node7-ib1  mlx5_1 1 default
#   node7-stor mlx5_0 1 0x8012
`

// WriteAddrs writes an address file with the names of [GenerateAddrs].
func WriteAddrs(w io.Writer, hostname string, ports []Port) error {
	var b strings.Builder
	b.WriteString(addrHeader)
	for _, a := range GenerateAddrs(hostname, ports) {
		fmt.Fprintf(&b, "%s %s %d default\n", a.Addr, a.Device, a.Port)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const optsHeader = `# Options of the InfiniBand path service (ibacm_opts.cfg).
# Written by ib_acme -O. Every value below is the default.
#
# One option per line: name value. Names may be in upper or lower case; a # in
# the first column begins a comment.
`

// commented are the options that the generated file shows only as a comment:
// paths that other options switch on, and everything that ibacm does not know.
var commented = map[string]bool{
	"route_data_file": true, "addr_data_file": true, "support_ips_in_addr_cfg": true, "provider_lib_path": true,
	"request_timeout": true, "kernel_timeout": true, "refresh": true, "negative_timeout": true, "cache_size": true,
	"server_threads": true, "max_clients": true, "max_user_clients": true, "poll_interval": true, "sa_max_rate": true,
	"metrics_addr": true, "bpf_dir": true, "fast_path": true, "fast_path_port": true, "fast_path_miss": true,
}

// meanings has the text of the comment above each option of the generated file.
var meanings = map[string]string{
	"log_file":                "Where messages go: a path, stdout or stderr.",
	"log_level":               "0: errors and configuration; 1: more of both; 2: every request.",
	"umad_debug_level":        "Debug level of libibumad. acmd does not use it; leave it at 0.",
	"lock_file":               "Keeps a second instance from starting.",
	"addr_prot":               "Who is asked for the GID of a name or an IP address, in this order, comma\nseparated. neigh: the kernel's neighbour table, for IP addresses of IPoIB; needs no\ndaemon on the peer. acm: the peers, by multicast.",
	"addr_timeout":            "Minutes that an address is kept; -1: for ever; 0: not at all.",
	"route_prot":              "Where the path to a GID comes from. sa: the subnet administrator; acm: the\nparameters of the multicast group, right only where all paths are alike.",
	"route_timeout":           "Minutes that a path is kept; -1: as long as its address.",
	"loopback_prot":           "local: the node's own addresses are answered at once; none: like any other.",
	"server_port":             "TCP port of the modes loop and open.",
	"server_mode":             "How clients reach the service. unix: unix socket; loop: TCP on 127.0.0.1;\nopen: TCP on every address, for anyone who can reach it.",
	"acme_plus_kernel_only":   "yes: only the kernel and ib_acme find the service, librdmacm does not. Has\nno effect when systemd made the socket.",
	"timeout":                 "Longest gap between two tries of one question, in ms.",
	"retries":                 "Least number of further tries of one question.",
	"resolve_depth":           "Multicast questions under way at one time per endpoint; 1: chosen by acmd.",
	"sa_depth":                "SA questions under way at one time per port; 1: chosen by acmd.",
	"send_depth":              "Datagrams under way at one time per queue pair; 1: chosen by acmd (+verbs only).",
	"recv_depth":              "Receive buffers of a queue pair, for what peers send (+verbs only).",
	"min_mtu":                 "Smallest MTU in the fabric, in bytes: 256, 512, 1024, 2048, 4096.",
	"min_rate":                "Slowest link in the fabric, in Gb/s (2 is 2.5).",
	"route_preload":           "Have paths before anybody asks. none; opensm_full_v1: from a file, OpenSM's full\npath record dump; sa: the paths to all nodes, with one question to the subnet\nadministrator (acmd only).",
	"route_data_file":         "The file of route_preload opensm_full_v1.",
	"addr_preload":            "Fill the address cache from a file. none, or acm_hosts: lines \"address gid\".",
	"addr_data_file":          "The file of addr_preload.",
	"support_ips_in_addr_cfg": "1: accept IP addresses in ibacm_addr.cfg too.",
	"provider_lib_path":       "Directory of ibacm's provider libraries; acmd has its providers built in.",
	"request_timeout":         "A client is answered after at most so many ms.",
	"kernel_timeout":          "How long the kernel waits for a path before it asks the subnet administrator\nitself, in ms. acmd sets it in the kernel, where it stays.",
	"refresh":                 "A path that is in use is asked for again after so many minutes; 0: never.",
	"negative_timeout":        "How long a failure is remembered, in ms.",
	"cache_size":              "Paths kept.",
	"server_threads":          "Event loops that serve clients.",
	"max_clients":             "Client connections at one time.",
	"max_user_clients":        "Client connections of one user at one time on the unix socket; 0 for no bound.",
	"poll_interval":           "How often devices and links are looked at beside their events, in ms.",
	"sa_max_rate":             "SA questions per second of this node; 0: no limit.",
	"bpf_dir":                 "Where counters are pinned so that they outlive the daemon: a directory on a bpf\nfile system, or none.",
	"fast_path":               "Where the kernel itself answers known paths, inside the asking program's send():\noff; kernel: clients that acmd has answered before; kernel-all: from the first\nrequest on, at the cost of every TCP connection of the host.",
	"fast_path_port":          "TCP port on 127.0.0.1 for these clients with server_mode unix; 0: any.",
	"fast_path_miss":          "What such a client is told of a path that is not known yet. fail: no data, at\nonce; wait: the path, when it is there, but a signal can make it miss the reply.",
	"metrics_addr":            "Where Prometheus scrapes figures: HOST:PORT (:PORT on every address), the path\nof a unix socket, or off.",
}

// WriteOptions writes an options file with every option at its default. confDir
// and runDir are those of [Defaults].
func WriteOptions(w io.Writer, confDir, runDir string) error {
	s := Defaults(confDir, runDir)
	var b strings.Builder
	b.WriteString(optsHeader)
	for _, o := range options {
		if o.name == "request_timeout" {
			b.WriteString("\n# The options from here on are acmd's own; ibacm ignores them.\n")
		}
		b.WriteString("\n")
		for line := range strings.SplitSeq(meanings[o.name], "\n") {
			b.WriteString("# " + line + "\n")
		}
		lead := ""
		if commented[o.name] {
			lead = "# "
		}
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(lead+o.name+" "+o.get(s), " "))
	}
	b.WriteString("\n# Provider of the ports of one subnet, or of all others:\n# provider ibacmp 0xfe80000000000000\n# provider ibacmp default\n")
	_, err := io.WriteString(w, b.String())
	return err
}
