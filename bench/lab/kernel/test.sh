#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# test.sh [KERNEL...]: mad/umad and the whole daemon under real Debian kernels. Each
# KERNEL is a package name (linux-image-amd64, linux-image-6.12-amd64); the kernels
# run side by side. Per kernel: mad/umad on InfiniBand ports with OpenSM, mad/umad
# on soft RoCE, acmd with acmctl on InfiniBand, and with IPoIB on it, the sockets of
# clients, answers in the kernel.
#
# What is downloaded is kept in KLAB_CACHE. Where the lab cannot be prepared (no
# qemu, no root to install it, no network) that is said and nothing is tested; with
# ACMD_CI=1 it is a failure. Once the lab runs, a failed or skipped test fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
base=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
export KLAB_CACHE=${KLAB_CACHE:-${base:-/tmp}/acmd-kernel-lab}
[ $# -gt 0 ] || set -- linux-image-amd64 linux-image-6.12-amd64
# Tests that must have passed in each run; fewer mean that they were not there.
least_umad=22 least_rxe=3 least_acmd_rxe=1 least_acmd=27 least_ipoib=4 least_maps=14 least_caps=4 least_fast=13 least_sock=7

unprepared() {
	echo "kernel tests: $*" >&2
	[ "${ACMD_CI-}" != 1 ] || { echo "kernel tests: FAILED (ACMD_CI=1 allows no missing lab)" >&2; exit 1; }
	echo "kernel tests: NOT RUN" >&2
	exit 0
}

command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
command -v go >/dev/null || unprepared "go is missing"
[ "$(uname -m)" = x86_64 ] || unprepared "the lab's kernels are for x86-64, this is $(uname -m)"
mkdir -p "$KLAB_CACHE" 2>/dev/null || unprepared "cannot write $KLAB_CACHE"
for k in "$@"; do
	"$here/run.sh" --prepare --softib -k "$k" || unprepared "the lab for $k cannot be prepared (see above; $here/README.md says what it needs)"
done

work=$(mktemp -d "${TMPDIR:-/tmp}/acmd-kernel.XXXXXX")
pids=()
cleanup() {
	[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

cd "$root"
export CGO_ENABLED=0
go test -c -o "$work/umad.test" ./mad/umad
go test -c -o "$work/acmd.test" ./cmd/acmd
go test -c -o "$work/bpf.test" ./bpf
go test -c -o "$work/service.test" ./resolver/service
go test -c -o "$work/acmsock.test" ./resolver/acmsock
go build -trimpath -o "$work/" ./cmd/acmd ./cmd/acmctl
# The stock librdmacm, and a client of it: acmctl trace clients watches them.
make -s -C bench/lab/peerlab build/raitest build/libfakeverbs.so || unprepared "raitest cannot be built (bench/lab/need.sh kernel names what it needs)"
client=()
for lib in $(ldd bench/lab/peerlab/build/raitest | sed -n 's/.*=> \(.*\/lib\(rdmacm\|ibverbs\|nl-[a-z0-9-]*\)\.so[.0-9]*\) .*/\1/p'); do
	client+=(-f "$lib:/lib/x86_64-linux-gnu/${lib##*/}")
done
client+=(-f bench/lab/peerlab/build/raitest -f bench/lab/peerlab/build/libfakeverbs.so)

# guest NAME LEAST RUN.SH-ARG...: one boot. Its status is 0 if at least LEAST tests
# passed and none failed or was skipped.
guest() {
	local name=$1 least=$2 out=$work/$kernel.out rc=0 passed
	shift 2
	echo "== $name under $kernel"
	"$here/run.sh" -k "$kernel" "$@" >"$out" 2>&1 &
	child=$!
	wait $child || rc=$?
	tr -d '\r' <"$out"
	passed=$(grep -c '^--- PASS: Test' "$out" || true)
	if [ "$rc" = 0 ] && grep -q -e '--- SKIP' "$out"; then
		echo "tests were skipped"
		rc=1
	fi
	if [ "$rc" = 0 ] && [ "$passed" -lt "$least" ]; then
		echo "only $passed tests ran, at least $least are there"
		rc=1
	fi
	[ "$rc" = 0 ] && echo "ok   $name under $kernel: $passed tests" || echo "FAIL $name under $kernel (status $rc)"
	return "$rc"
}

# The times are wide: they are there to end what hangs, on a busy machine too.
kernel_tests() {
	local kernel=$1 bad=0 child=
	trap '[ -z "$child" ] || kill $child 2>/dev/null; exit 1' TERM
	trap - EXIT
	guest "mad/umad on InfiniBand" $least_umad --softib-args "hcas=8 switches=2" --opensm "-s 2" -t 600 \
		-e ACMD_KERNEL_LAB=softib "$work/umad.test" -test.v -test.timeout 560s -test.run '^TestKernelSoftib' || bad=1
	guest "mad/umad on soft RoCE" $least_rxe -t 240 \
		-e ACMD_KERNEL_LAB=rxe "$work/umad.test" -test.v -test.timeout 200s -test.run '^TestKernelRXE' || bad=1
	guest "acmd on soft RoCE" $least_acmd_rxe -t 240 -f "$work/acmd" -f "$work/acmctl" \
		-e ACMD_KERNEL_LAB=rxe "$work/acmd.test" -test.v -test.timeout 200s -test.run '^TestRXE' || bad=1
	guest "acmd on InfiniBand" $least_acmd --softib --opensm "-s 2" -t 1260 -f "$work/acmd" -f "$work/acmctl" "${client[@]}" \
		-e ACMD_KERNEL_LAB=softib "$work/acmd.test" -test.v -test.timeout 1200s -test.run '^TestKernel' || bad=1
	guest "acmd on IPoIB" $least_ipoib --softib -m ib_ipoib --opensm "-s 2" -t 700 -f "$work/acmd" -f "$work/acmctl" \
		-e ACMD_KERNEL_LAB=ipoib "$work/acmd.test" -test.v -test.timeout 660s -test.run '^TestIPoIB' || bad=1
	guest "pins and plans of the fast path" $least_maps --net none -t 700 \
		-e ACMD_CI=1 "$work/bpf.test" -test.v -test.timeout 660s \
		-test.run '^Test(Fast|Places|Adopt|Modes|Locked|NoBPFFS|Unprivileged|Replaced|Sweep|KernelSide)' || bad=1
	guest "capabilities" $least_caps --net none -t 700 \
		-e ACMD_CI=1 "$work/acmd.test" -test.v -test.timeout 660s \
		-test.run '^TestCapabilities(Dropped|ForeignDirectory|Missing|OfUser)$' || bad=1
	# What depends on how the kernel's unix sockets behave.
	guest "clients' sockets" $least_sock --net none -t 700 \
		-e ACMD_CI=1 "$work/acmsock.test" -test.v -test.timeout 660s -test.run '^Test(Descriptor|RequestLeft|MoreIsTaken|PartBehindLeft|Hit)' || bad=1
	# The stock librdmacm is not in the guest, and use over minutes is no matter of the kernel.
	guest "fast path" $least_fast --net none --mem 1024 -t 1200 \
		-e ACMD_CI=1 -e ACMD_RACE=4000 "$work/service.test" -test.v -test.timeout 1160s \
		-test.run '^TestFastPath' -test.skip 'Librdmacm|Signals|Use' || bad=1
	return $bad
}

for k in "$@"; do
	kernel_tests "$k" >"$work/$k.log" 2>&1 &
	pids+=($!)
done
bad=0 i=0
for k in "$@"; do
	wait "${pids[$i]}" || bad=1
	cat "$work/$k.log"
	i=$((i + 1))
done
pids=()
if [ $bad = 0 ]; then echo "ok   kernel tests: $*"; else echo "FAIL kernel tests: $*"; fi
exit $bad
