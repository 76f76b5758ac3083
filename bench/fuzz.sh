#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# fuzz.sh TIME: run every fuzz target of the module for TIME each.
set -euo pipefail
cd "$(dirname "$0")/.."
n=0
while IFS=: read -r file target; do
	echo "== $target in ${file%/*}"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "./${file%/*}"
	n=$((n + 1))
done < <(grep -rhoH --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's|^\./||; s/:func /:/' | sort)
[ $n -gt 0 ] || { echo "no fuzz target found" >&2; exit 1; }
echo "$n fuzz targets ran for $1 each"
