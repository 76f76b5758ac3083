#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# lint.sh: formatting, vet on several targets, licence lines, file sizes, the list of field cases.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
complain() { echo "lint: $*" >&2; bad=1; }

unformatted=$(gofmt -l $(git ls-files -co --exclude-standard '*.go'))
[ -z "$unformatted" ] || complain "not gofmt'ed: $unformatted"
go vet ./...
for arch in 386 arm64 s390x; do GOARCH=$arch go vet ./mad ./mad/sa ./mad/acm ./mad/ring ./mad/transport ./cache; done
while read -r f; do
	[ -f "$f" ] || continue
	case $f in */*_bpfel.go) continue ;; esac # written by bpf2go
	head -n 5 "$f" | grep -q 'SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause' || complain "$f has no SPDX line"
	case $f in *.go) n=$(wc -l <"$f"); [ "$n" -le 800 ] || complain "$f has $n lines, at most 800" ;; esac
done < <(git ls-files -co --exclude-standard '*.go' '*.c' '*.h' '*.sh' '*Makefile' '.ci/run')
if echo '#include <infiniband/verbs.h>' | ${CC:-cc} -E -x c - >/dev/null 2>&1; then
	CGO_ENABLED=1 go vet -tags verbs ./mad/verbs ./resolver/service ./cmd/acmd
fi
for n in $(git grep -hoiE 'field cases? [0-9]+((, | and )[0-9]+)*' -- '*.go' '*.sh' '*.txtar' | grep -oE '[0-9]+' | sort -u); do
	grep -q "^| $n |" FIELD-CASES.md || complain "field case $n is not in FIELD-CASES.md"
done
for t in $(grep -oE '`Test[A-Za-z0-9]+`' FIELD-CASES.md | tr -d '`' | sort -u); do
	git grep -q "^func $t(" -- '*_test.go' || complain "FIELD-CASES.md names $t, which is no test"
done
! go list -deps ./cmd/... | grep -qx 'C' || complain "the plain build uses cgo"
exit $bad
