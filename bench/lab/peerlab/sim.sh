#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# sim.sh NODE command...     run an infiniband-diags tool as NODE
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
[ $# -ge 2 ] || die "usage: sim.sh NODE command..."
on_node "$@"
