#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# run.sh [-quick] [COMPARISON...]: run the comparisons and leave their tables in
# bench/out/*.md. Without names all of them run, about 15 minutes. ROUNDS (5) and
# SLICE (1500ms) change the length, COMPARE_FLAGS adds flags such as -strict. The
# names are in the list below and in compare/doc.go; cold-apart needs two processors.
# Fails when any answer was wrong; a missed mark is a line in the table.
set -uo pipefail
cd "$(dirname "$0")"
flags=(-rounds "${ROUNDS:-5}" -t "${SLICE:-1500ms}")
if [ "${1-}" = -quick ]; then
	flags=(-quick)
	shift
fi
[ $# -gt 0 ] || set -- machine cached fastpath counting clients pipelined cold cold-gid cold-blocking cold-apart multicast storm prefetch scrape dead hostile start gobench
mkdir -p out
[ -x ../bin/acmd ] || make -s -C .. build || exit 1
go build -o out/compare ./compare || exit 1
bad=()
for name; do
	echo "== $name, load $(cut -d' ' -f1 /proc/loadavg)" >&2
	# The table appears on the terminal as it grows.
	out/compare "${flags[@]}" ${COMPARE_FLAGS-} "$name" | tee "out/$name.md.part" || bad+=("$name")
	mv -f "out/$name.md.part" "out/$name.md"
done
[ ${#bad[@]} = 0 ] || { echo "wrong answers or no comparison: ${bad[*]}" >&2; exit 1; }
