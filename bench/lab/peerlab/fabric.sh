#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# fabric.sh start [netlist] | stop | status     ibsim plus opensm
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"

sm_active() { on_node "$SM_HOST" smpquery portinfo -D 0 1 | grep -q 'LinkState:.*Active'; }
swept() { [ -s "$STATE/opensm/opensm-subnet.lst" ]; }

case $1 in
start)
	net=${2:-$HERE/netlists/small.net}
	[ -r "$net" ] || die "cannot read $net"
	pid_alive "$STATE/ibsim.pid" && die "already running (state dir $STATE)"
	mkdir -p "$STATE/opensm" "$STATE/ud"
	rm -rf "$STATE"/opensm/* "$STATE"/ud/*
	cp "$net" "$STATE/netlist"
	( cd "$STATE" && exec setsid ibsim -s -n netlist > ibsim.log 2>&1 < /dev/null ) &
	pid_save "$STATE/ibsim.pid" $!
	wait_for 20 grep -q 'simulator ready' "$STATE/ibsim.log" || die "ibsim did not start"
	( cd "$STATE/opensm" && exec setsid env SIM_HOST="$SM_HOST" OSM_CACHE_DIR="$PWD" \
		OSM_TMP_DIR="$PWD" LD_PRELOAD="$UMAD2SIM" opensm -f "$PWD/opensm.log" \
		--dump_files_dir "$PWD" -e -s 0 $OPENSM_ARGS > out.log 2>&1 < /dev/null ) &
	pid_save "$STATE/opensm.pid" $!
	wait_for "${SWEEP_WAIT:-60}" swept || die "opensm did not finish its first sweep"
	wait_for 30 sm_active || die "subnet is not active"
	echo "fabric up: $(grep -ci '^hca' "$STATE/netlist") HCAs, ibsim socket base $IBSIM_SOCKNAME"
	;;
stop)
	pid_stop "$STATE/opensm.pid"
	pid_stop "$STATE/ibsim.pid"
	;;
status)
	for p in ibsim opensm; do
		pid_alive "$STATE/$p.pid" && echo "$p running, pid $(pid_of "$STATE/$p.pid")" || echo "$p not running"
	done
	;;
*)
	die "usage: fabric.sh start [netlist] | stop | status"
	;;
esac
