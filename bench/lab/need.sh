#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# need.sh test|kernel: the Debian packages that the tests want. As root the missing
# ones are installed; otherwise they are named. With ACMD_CI=1 a missing one fails.
set -u
case ${1-} in
test) want="gcc:gcc ld:binutils ibsim:ibsim-utils opensm:opensm saquery:infiniband-diags \
	ib_acme:ibacm ip:iproute2 /usr/include/stdio.h:libc6-dev \
	clang-14:clang-14 llvm-strip-14:llvm-14 bpftool:bpftool /usr/include/bpf/bpf_helpers.h:libbpf-dev \
	/usr/include/infiniband/verbs.h:libibverbs-dev /usr/include/rdma/rdma_cma.h:librdmacm-dev" ;;
kernel) want="qemu-system-x86_64:qemu-system-x86 gcc-12:gcc-12 xz:xz-utils zstd:zstd make:make \
	/usr/include/infiniband/verbs.h:libibverbs-dev /usr/include/rdma/rdma_cma.h:librdmacm-dev" ;;
*) echo "usage: need.sh test|kernel" >&2; exit 2 ;;
esac
missing=()
for w in $want; do
	what=${w%:*}
	case $what in
	/*) [ -e "$what" ] && continue ;;
	*) PATH=$PATH:/usr/sbin:/sbin command -v "$what" >/dev/null && continue ;;
	esac
	missing+=("${w##*:}")
done
# A bare root file system has no /etc/hosts, and clients are tested with "localhost".
if [ "$1" = test ] && ! getent ahosts localhost >/dev/null; then
	if [ "$(id -u)" = 0 ] && echo '127.0.0.1 localhost' >>/etc/hosts && getent ahosts localhost >/dev/null; then
		echo "added localhost to /etc/hosts"
	else
		echo "localhost has no address: /etc/hosts wants '127.0.0.1 localhost'" >&2
		[ "${ACMD_CI-}" != 1 ] || exit 1
	fi
fi
if [ "$1" = test ] && ! "$(dirname "$0")/prometheus.sh" && [ "${ACMD_CI-}" = 1 ]; then exit 1; fi
[ ${#missing[@]} = 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "installing with apt-get: ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	log=$(mktemp)
	# A mirror may hiccup, and a fresh machine be at its own updates.
	apt="apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300"
	if { $apt update && $apt install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
		rm -f "$log"
		exit 0
	fi
	tail -n 5 "$log" >&2
	echo "apt-get could not install: ${missing[*]} (log: $log)" >&2
else
	echo "missing Debian packages (their tests are skipped): apt-get install ${missing[*]}" >&2
fi
[ "${ACMD_CI-}" != 1 ]
