#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# prometheus.sh: puts the programs prometheus and promtool, as Debian builds them,
# into bench/lab/build. Only these two files are taken out of the package: installed,
# it would start a service on port 9090. Needs apt-get, not root.
set -euo pipefail
cd "$(dirname "$0")"
PATH=$PATH:/usr/sbin:/sbin
have() { [ -x "build/$1" ] || command -v "$1" >/dev/null; }
have prometheus && have promtool && exit 0
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { echo "prometheus and promtool are missing" >&2; exit 1; }
mkdir -p build
dir=$(mktemp -d build/deb.XXXXXX)
trap 'rm -rf "$dir"' EXIT
echo "fetching prometheus"
apt="apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300"
download() { (cd "$dir" && $apt -o APT::Sandbox::User=root download prometheus) >"$dir/log" 2>&1; }
download || { [ "$(id -u)" = 0 ] && $apt update >/dev/null 2>&1 && download; } ||
	{ tail -n 3 "$dir/log" >&2; echo "prometheus cannot be downloaded" >&2; exit 1; }
dpkg-deb --fsys-tarfile "$dir"/*.deb | tar -xf - -C "$dir" ./usr/bin/prometheus ./usr/bin/promtool
mv "$dir/usr/bin/promtool" "$dir/usr/bin/prometheus" build/
