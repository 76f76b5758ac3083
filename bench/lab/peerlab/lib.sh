# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# Shared helpers; sourced by the other scripts, which set HERE first.

STATE=${PEERLAB_STATE:-$HERE/run}
UMAD2SIM=${UMAD2SIM:-/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so}
FAKEVERBS=$HERE/build/libfakeverbs.so
IBACM=${IBACM:-/usr/sbin/ibacm}
SM_HOST=${SM_HOST:-sm-host}

# ibsim's sockets live in the abstract name space: one name per state dir.
IBSIM_SOCKNAME=${IBSIM_SOCKNAME:-peerlab-$(printf %s "$STATE" | cksum | cut -d' ' -f1)}
export IBSIM_SOCKNAME

die() { echo "${0##*/}: $*" >&2; exit 1; }

# A PID file holds "pid starttime", so a recycled PID is never signalled.
start_time() { # pid
	sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20
}

pid_save() { # file pid
	echo "$2 $(start_time "$2")" > "$1"
}

pid_alive() { # file
	local pid born
	[ -r "$1" ] && read -r pid born < "$1" || return 1
	[ -n "$born" ] && [ "$(start_time "$pid")" = "$born" ]
}

pid_of() { cut -d' ' -f1 "$1"; }

pid_stop() { # file
	local pid n=0
	if pid_alive "$1"; then
		pid=$(pid_of "$1")
		kill "$pid" 2>/dev/null
		while pid_alive "$1" && [ $n -lt 50 ]; do sleep 0.1; n=$((n + 1)); done
		pid_alive "$1" && kill -9 "$pid" 2>/dev/null
	fi
	rm -f "$1"
}

wait_for() { # seconds command...
	local n=$(($1 * 5)); shift
	while ! "$@" >/dev/null 2>&1; do
		n=$((n - 1))
		[ $n -gt 0 ] || return 1
		sleep 0.2
	done
}

on_node() { # node command...   (run under the simulated umad layer)
	mkdir -p "$STATE/tools"
	( cd "$STATE/tools" && SIM_HOST=$1 && shift && export SIM_HOST &&
	  LD_PRELOAD=$UMAD2SIM exec "$@" )
}
