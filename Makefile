# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# `make help` lists the targets. Tests that need a real peer (OpenSM, ibsim, stock
# ibacm, a kernel under qemu) skip where it is missing, and test-go prints each with its
# reason; with ACMD_CI=1 they fail instead.
SHELL := /bin/bash
GO ?= go
# Runs, not seconds: at the end of a time go test can take its own deadline for a finding.
FUZZTIME ?= 15000x
export CGO_ENABLED ?= 0

BIN := bin/acmd bin/acmctl
KERNELS := linux-image-amd64 linux-image-6.12-amd64
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# Is there what mad/verbs is compiled with?
HAVE_VERBS := echo '\#include <infiniband/verbs.h>' | $${CC:-cc} -E -x c - >/dev/null 2>&1

.PHONY: help all build demo test test-go test-bench test-race test-kernel fuzz-short lint generate \
	check-generated bench bench-once clean need-test need-kernel peers

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

all: build ## build everything

build: ## build bin/acmd and bin/acmctl (static, no cgo), and bin/acmd-verbs where libibverbs is
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/acmd ./cmd/acmctl
	@if $(HAVE_VERBS); then set -x; CGO_ENABLED=1 $(GO) build -tags verbs,netgo,osusergo -trimpath -ldflags '$(LDFLAGS)' -o bin/acmd-verbs ./cmd/acmd; \
	else echo 'bin/acmd-verbs is not built: it needs a C compiler and libibverbs-dev'; fi

demo: build ## resolve one destination in five ways on an embedded fabric of 64 nodes
	@bench/demo.sh

test: need-test lint check-generated test-go test-bench test-race fuzz-short bench-once test-kernel ## everything, the real peers included

test-go: build peers ## go test ./..., with OpenSM, ibsim and the stock clients
	set -o pipefail; $(GO) test -v -count=1 -timeout 20m ./... | awk -f bench/testlog.awk
	@if $(HAVE_VERBS); then set -x -o pipefail; CGO_ENABLED=1 $(GO) test -v -tags verbs -count=1 -timeout 5m ./mad/verbs | awk -f bench/testlog.awk; \
	elif [ "$$ACMD_CI" = 1 ]; then echo 'mad/verbs cannot be built' >&2; exit 1; \
	else echo 'tests of mad/verbs are skipped: no C compiler or no libibverbs-dev'; fi

test-bench: ## vet and test the module of the benchmarks
	cd bench && $(GO) vet ./... && $(GO) test -count=1 -timeout 10m ./...

test-race: build peers ## what test-go runs, under the race detector
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 25m ./...
	@! $(HAVE_VERBS) || { set -x; CGO_ENABLED=1 $(GO) test -race -tags verbs -count=1 -timeout 5m ./mad/verbs; }

test-kernel: build need-kernel ## mad/umad and the whole daemon under real Debian kernels, InfiniBand in software
	@bench/lab/kernel/test.sh $(KERNELS)

fuzz-short: ## every fuzz target for FUZZTIME
	@bench/fuzz.sh $(FUZZTIME)

lint: ## gofmt, go vet, licence lines, file sizes
	@bench/lint.sh

generate: ## regenerate what is generated
	$(GO) generate ./...

check-generated: ## fail when generated files are not what is committed
	@if [ "$$ACMD_CI" != 1 ] && ! { command -v clang-14 && command -v llvm-strip-14; } >/dev/null; then \
		echo 'check-generated: skipped, clang-14 and llvm-14 are not installed'; exit 0; fi; \
	$(MAKE) -s generate && git diff --exit-code --stat -- . || { echo 'generated files differ: commit the result of "make generate"' >&2; exit 1; }

bench: build peers ## the comparisons of bench/RESULTS.md (about 15 minutes)
	@bench/run.sh

bench-once: ## each Go benchmark once, so that none rots
	$(GO) test -run '^$$' -bench . -benchtime 1x ./... > /dev/null
	cd bench && $(GO) test -run '^$$' -bench . -benchtime 1x ./... > /dev/null

peers: need-test ## build the preload library and clients that the tests use
	@if command -v cc >/dev/null; then $(MAKE) -s -C bench/lab/peerlab; \
	elif [ "$$ACMD_CI" = 1 ]; then echo 'no C compiler' >&2; exit 1; fi

need-test:
	@bench/lab/need.sh test

need-kernel:
	@bench/lab/need.sh kernel

clean: ## remove what was built
	rm -rf bin bench/out bench/lab/peerlab/build
