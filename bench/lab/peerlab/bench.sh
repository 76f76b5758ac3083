#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# bench.sh LABEL SERVICE PID SRC DST,DGID,DLID [destinations file]
#
# The standard cached-resolve runs against any daemon that speaks ibacm's
# client protocol; SERVICE is a socket path or host:port.  REPS and TIME
# change the length, CONNS the connection counts.
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
[ $# -ge 5 ] || die "usage: bench.sh LABEL SERVICE PID SRC DST,DGID,DLID [destinations file]"
mkdir -p "$HERE/build"
( cd "$HERE/../../acmload" && go build -o "$HERE/build/acmload" . ) || exit 1
# Raw I/O blocks without telling the Go scheduler; spare it the preemption signals.
export GODEBUG=asyncpreemptoff=1
common=(resolve -s "$2" -pid "$3" -src "$4" -c "${CONNS:-1,4,16,64}" -reps "${REPS:-7}" -t "${TIME:-2s}" -warm)
uptime
"$HERE/build/acmload" "${common[@]}" -label "$1" -dst "$5"
[ -z "$6" ] || "$HERE/build/acmload" "${common[@]}" -label "$1-many" -dests "$6"
uptime
