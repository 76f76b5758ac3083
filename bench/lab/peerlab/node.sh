#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# node.sh start NODE ["option value" ...] | stop NODE | sock NODE | pid NODE
#
# Runs one stock ibacm attached to simulated node NODE.  Extra arguments are
# lines appended to its ibacm_opts.cfg.  Files in the environment:
#   ADDR_LINES   extra lines for ibacm_addr.cfg
#   ROUTE_FILE, HOSTS_FILE   preload files
#   ROUTE_PROT, LOG_LEVEL, ACM_TIMEOUT   the options of these names
#   NOFILE       limit on open files (default 1024, systemd's soft limit)
#   SIGPIPE=default   leave SIGPIPE alone (systemd ignores it for services)
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"

cmd=$1 node=$2
[ -n "$node" ] || die "usage: node.sh start|stop|sock|pid NODE [\"option value\" ...]"
dir=$STATE/nodes/$node
shift 2

# node-a -> 10.77.0.1, node-b -> 10.77.0.2 ...; h<N> -> 10.78.hi.lo
ip_of() {
	case $1 in
	node-[a-z]) printf '10.77.0.%d' $(($(printf %d "'${1#node-}") - 96)) ;;
	h[0-9]*) printf '10.78.%d.%d' $((10#${1#h} / 250)) $((10#${1#h} % 250 + 1)) ;;
	esac
}

case $cmd in
start)
	[ -r "$FAKEVERBS" ] || die "run make first"
	pid_alive "$dir/daemon.pid" && die "$node is already running"
	mkdir -p "$dir" "$STATE/ud"
	rm -rf "$dir"/sys-* "$dir"/*.sock "$dir"/*.port
	ip=$(ip_of "$node")
	{
		echo "$node ibsim0 1 default"
		[ -n "$ip" ] && echo "$ip ibsim0 1 default"
		[ -n "$ADDR_LINES" ] && printf '%s\n' "$ADDR_LINES"
	} > "$dir/ibacm_addr.cfg"
	{
		echo "log_file ibacm.log"
		echo "log_level ${LOG_LEVEL:-0}"
		echo "lock_file ibacm.pid"
		echo "support_ips_in_addr_cfg 1"
		echo "route_prot ${ROUTE_PROT:-acm}"
		echo "timeout ${ACM_TIMEOUT:-500}"
		[ -n "$ROUTE_FILE" ] && printf 'route_preload opensm_full_v1\nroute_data_file %s\n' "$ROUTE_FILE"
		[ -n "$HOSTS_FILE" ] && printf 'addr_preload acm_hosts\naddr_data_file %s\n' "$HOSTS_FILE"
		[ $# -gt 0 ] && printf '%s\n' "$@"
	} > "$dir/ibacm_opts.cfg"
	[ "$SIGPIPE" = default ] || trap '' PIPE
	( cd "$dir" && ulimit -n "${NOFILE:-1024}" && exec setsid env SIM_HOST="$node" FAKEVERBS_DIR=../../ud \
		FAKEVERBS_RUN=. FAKEVERBS_TERM_EXIT=1 LD_PRELOAD="$FAKEVERBS:$UMAD2SIM" \
		"$IBACM" -P -A ibacm_addr.cfg -O ibacm_opts.cfg > out.log 2>&1 < /dev/null ) &
	pid_save "$dir/daemon.pid" $!
	up() { [ -S "$dir/ibacm-unix.sock" ] || [ -s "$dir/ibacm-tcp.port" ]; }
	wait_for "${NODE_WAIT:-30}" up || die "$node did not start, see $dir"
	sleep 0.2
	pid_alive "$dir/daemon.pid" || die "$node started and died, see $dir"
	echo "$node up, pid $(pid_of "$dir/daemon.pid"), ${ip:-no ip}, $dir"
	;;
stop)
	pid_stop "$dir/daemon.pid"
	rm -rf "$dir"/sys-*
	;;
sock)
	echo "$dir/ibacm-unix.sock"
	;;
pid)
	pid_of "$dir/daemon.pid"
	;;
*)
	die "unknown command $cmd"
	;;
esac
