#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# up.sh [node ...]     build, start the small fabric and some stock ibacm nodes
HERE=$(cd "$(dirname "$0")" && pwd)
set -e
make -s -C "$HERE"
"$HERE/fabric.sh" start "$HERE/netlists/${NET:-small}.net"
for n in ${@:-node-a node-b}; do "$HERE/node.sh" start "$n"; done
