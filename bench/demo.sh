#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# demo.sh: acmd on an embedded fabric of 64 nodes, one destination in five ways.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d "${TMPDIR:-/tmp}/acmd-demo.XXXXXX")
pid=
cleanup() {
	status=$?
	[ -z "$pid" ] || { kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; }
	[ $status = 0 ] || { echo "--- acmd's log:" >&2; cat "$dir/log" >&2; }
	rm -rf "$dir"
}
trap cleanup EXIT

ctl() { # ctl VERB ARGUMENT...: show the command, then run it
	echo
	echo "\$ acmctl $*"
	bin/acmctl "$1" --run-dir "$dir" "${@:2}"
}
field() { sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" <<<"$2" | head -n 1; }

echo "An InfiniBand fabric of 64 nodes inside acmd: its own SA, and peers that answer ACM"
echo "multicast. acmd runs on node0000; the destination is node0042."
printf '%s\n' "log_file stderr" "bpf_dir none" >"$dir/opts.cfg"
bin/acmd -P -O "$dir/opts.cfg" -A "$dir/addr.cfg" --run-dir "$dir" --fabric embedded:nodes=64 \
	--metrics 127.0.0.1:0 2>"$dir/log" &
pid=$!
for _ in $(seq 200); do
	[ -S "$dir/ibacm-unix.sock" ] && [ -S "$dir/acmd.ctl" ] && break
	kill -0 $pid
	sleep 0.05
done

ctl endpoints
ctl resolve --src node0000 node0042
json=$(bin/acmctl resolve --run-dir "$dir" --json --src node0000 node0042)
gid=$(field dgid "$json") lid=$(field dlid "$json")
ctl resolve 10.64.0.43
ctl resolve fd00:0:0:1::2b
ctl resolve "gid:$gid"
ctl resolve "lid:$lid"
ctl perf
ctl top --once
echo
address=$(sed -n 's/.*msg="serving metrics".* address=//p' "$dir/log")
echo "For Prometheus, on http://$address/metrics:"
exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
grep -E '^acmd_(service_|sa_requests_sent)' <&3
exec 3>&-
echo
echo "All five answered; the SA was asked for a path once for the address forms and the GID, once for the LID."
echo "The other requests join the multicast group and subscribe to the SM's notices (traps 64 to 67 and 144)."
