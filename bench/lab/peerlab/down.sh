#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# down.sh     stop every process that up.sh, node.sh and fabric.sh started
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
for d in "$STATE"/nodes/*/; do
	[ -e "$d/daemon.pid" ] && "$HERE/node.sh" stop "$(basename "$d")"
done
"$HERE/fabric.sh" stop
