#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# fuzz.sh TIME: run every fuzz target of the module for TIME (1m) or a number of
# inputs (15000x) each. A package is
# compiled once for all its targets.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d "${TMPDIR:-/tmp}/acmd-fuzz.XXXXXX")
trap 'rm -rf "$work"' EXIT
n=0 pkg=
while IFS=: read -r file target; do
	if [ "${file%/*}" != "$pkg" ]; then
		pkg=${file%/*}
		go test -c -fuzz . -o "$work/fuzz.test" "./$pkg"
	fi
	echo "== $target in $pkg"
	# What is found on the way is kept where go test keeps it.
	(cd "$pkg" && "$work/fuzz.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$1" \
		-test.fuzzcachedir "$(go env GOCACHE)/fuzz/$(go list .)")
	n=$((n + 1))
done < <(grep -rhoH --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's|^\./||; s/:func /:/' | sort)
[ $n -gt 0 ] || { echo "no fuzz target found" >&2; exit 1; }
echo "$n fuzz targets ran for $1 each"
