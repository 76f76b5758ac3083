#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# cold.sh     uncached resolves on the 600-node fabric: the SA alone, then stock
#             ibacm asking the SA, then stock ibacm over multicast.  REPS=3.
HERE=$(cd "$(dirname "$0")" && pwd)
export PEERLAB_STATE=${PEERLAB_STATE:-$HERE/run/big} GODEBUG=asyncpreemptoff=1
. "$HERE/lib.sh"
make -s -C "$HERE" && ( cd "$HERE/../../acmload" && go build -o "$HERE/build/acmload" . ) || exit 1
acmload=$HERE/build/acmload reps=${REPS:-3} many=${MANY:-500}
trap '"$HERE/down.sh"' EXIT
"$HERE/fabric.sh" start "$HERE/netlists/n600.net" || exit 1

field() { "$HERE/sim.sh" "$1" smpquery "$2" -D 0 $4 | sed -n "s/^$3:\.*//p"; }
lid1=$(field h1 portinfo Lid 1) lid2=$(field h2 portinfo Lid 1)
guid2=$(($(field h2 nodeinfo PortGuid)))
gid2=$(printf 'fe80::%x:%x' $((guid2 >> 16)) $((guid2 & 0xffff)))
"$acmload" gen dests -guid2lid "$STATE/opensm/guid2lid" -kind lid -except "$lid1" > "$STATE/dests.lid"
for ((i = 0; i < many; i++)); do
	echo "10.90.$((i / 250)).$((i % 250 + 1))"
done > "$STATE/ips"
sed "s/.*/ip:& $gid2 $lid2/" "$STATE/ips" > "$STATE/dests.mc"

echo "== SA alone"
for w in 1 4 16 64; do
	"$acmload" sabench -node h2 -dests "$STATE/dests.lid" -w $w -n 3000 -reps "$reps" \
		-pid "$(pid_of "$STATE/opensm.pid")" -simpid "$(pid_of "$STATE/ibsim.pid")" |
		tail -n +$((w == 1 ? 2 : 3))
done

run() { # label source dests conns option...
	local label=$1 src=$2 dests=$3 conns=$4; shift 4
	for ((r = 0; r < reps; r++)); do
		"$HERE/node.sh" stop h1
		"$HERE/node.sh" start h1 "$@" > /dev/null || return
		sleep 0.3
		"$acmload" resolve -s "$("$HERE/node.sh" sock h1)" -pid "$("$HERE/node.sh" pid h1)" \
			-label "$label" -src "$src" -dests "$dests" -once -c "$conns" | tail -n +2
	done
}

echo "== ibacm, $(wc -l < "$STATE/dests.lid") path queries by LID, none cached"
for depth in 1 16; do for c in 1 16 64; do
	run "sa_depth=$depth" "lid:$lid1" "$STATE/dests.lid" $c "route_prot sa" "sa_depth $depth"
done; done

echo "== ibacm, $many IP addresses of another ibacm, none cached"
ADDR_LINES=$(sed 's/$/ ibsim0 1 default/' "$STATE/ips") "$HERE/node.sh" start h2
for rp in acm sa; do for depth in 1 16; do for c in 1 16; do
	run "$rp,depth=$depth" ip:10.78.0.2 "$STATE/dests.mc" $c "route_prot $rp" \
		"resolve_depth $depth" "sa_depth $depth"
done; done; done
