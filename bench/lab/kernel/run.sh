#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# run.sh - boot Debian's own kernel under qemu (software emulation), with two
# soft-RoCE devices joined by a veth pair (or, with --softib, InfiniBand HCAs on
# a switch and an OpenSM), and run one static program in it.
# See README.md beside this file, or run with --help.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${KLAB_CACHE:-${TMPDIR:-/tmp}/kernel-lab-cache}
kernel=${KLAB_KERNEL:-linux-image-amd64}
timeout_s=${KLAB_TIMEOUT:-120}
mem=${KLAB_MEM:-512}
accel=${KLAB_ACCEL:-tcg}
cpu=${KLAB_CPU:-max}
append=${KLAB_APPEND:-}
topology=pair
# A "?" before a name: take it if this kernel has it (rxe asks for "crc32" at run
# time, so it is in no module's list of dependencies).
modules="?crc32_generic rdma_rxe ib_umad ib_uverbs rdma_cm rdma_ucm veth dummy"
verbose=0 prepare_only=0 refresh=0
files=() envs=() extra_modules=""
softib_src=${KLAB_SOFTIB:-$here/../softib}
softib_args="" opensm=1 opensm_args=""

usage() {
	cat <<'U'
usage: run.sh [option...] [--] PROGRAM [ARG...]
       run.sh --prepare            fetch and unpack only

PROGRAM is a static x86-64 Linux executable (CGO_ENABLED=0 go build, or
go test -c). It runs as root in the guest; its output is printed here and its
exit status is this script's.

  -k, --kernel PKG     Debian package or meta-package (KLAB_KERNEL,
                       linux-image-amd64); e.g. linux-image-6.12-amd64
  -m, --modules "A B"  load these kernel modules too (e.g. "ib_ipoib")
  -n, --net pair|none  pair: veth k0/k1 with rxe0/rxe1 on them; none: nothing
      --softib           InfiniBand instead: HCAs sib0.. on a switch (module
                       softib, built when needed), OpenSM on sib0, ACTIVE
      --softib-args "A"  its parameters, e.g. "hcas=6 switches=2 ports=2"
      --opensm "ARGS"    more arguments for opensm, e.g. "-s 2 -p 3"
      --no-opensm        start none, and do not wait for ACTIVE
  -f, --file SRC[:DST] copy a file or folder into the guest (DST: its path there)
  -e, --env NAME=VALUE set in PROGRAM's environment
  -t, --timeout SECS   for boot and program together (KLAB_TIMEOUT, 120)
      --mem MIB        guest memory (KLAB_MEM, 512)
      --accel NAME     qemu accelerator (KLAB_ACCEL, tcg)
      --append TEXT    more kernel command line (KLAB_APPEND)
      --refresh        fetch the kernel package again
  -v, --verbose        print the kernel log and the timings too

exit status: PROGRAM's; 124: out of time; 125: the lab itself failed.
U
}

die() { echo "kernel-lab: $*" >&2; exit 125; }
say() { [ "$verbose" = 0 ] || echo "kernel-lab: $*" >&2; }

while [ $# -gt 0 ]; do
	case $1 in
	-k|--kernel) kernel=$2; shift 2 ;;
	-m|--modules) extra_modules+=" $2"; shift 2 ;;
	-n|--net) topology=$2; shift 2 ;;
	--softib) topology=softib; shift ;;
	--softib-args) topology=softib softib_args=$2; shift 2 ;;
	--opensm) topology=softib opensm_args=$2; shift 2 ;;
	--no-opensm) opensm=0; shift ;;
	-f|--file) files+=("$2"); shift 2 ;;
	-e|--env) envs+=("$2"); shift 2 ;;
	-t|--timeout) timeout_s=$2; shift 2 ;;
	--mem) mem=$2; shift 2 ;;
	--accel) accel=$2; shift 2 ;;
	--append) append+=" $2"; shift 2 ;;
	--refresh) refresh=1; shift ;;
	--prepare) prepare_only=1; shift ;;
	-v|--verbose) verbose=1; shift ;;
	-h|--help) usage; exit 0 ;;
	--) shift; break ;;
	-*) usage >&2; exit 125 ;;
	*) break ;;
	esac
done
if [ $prepare_only = 0 ] && [ $# = 0 ]; then usage >&2; exit 125; fi
case $topology in pair|none) ;; softib) modules="ib_umad ib_uverbs rdma_cm rdma_ucm" ;; *) die "unknown --net $topology" ;; esac

now() { date +%s.%N; }
t0=$(now)

# --- what apt-get brings -------------------------------------------------

# A mirror may hiccup, and a fresh machine be at its own updates.
apt="apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300"

need_apt() { # need_apt COMMAND PACKAGE: install PACKAGE if COMMAND is missing
	command -v "$1" >/dev/null && return 0
	say "installing $2"
	apt_lists
	DEBIAN_FRONTEND=noninteractive $apt install -y \
		--no-install-recommends "$2" >"$cache/apt-$2.log" 2>&1 ||
		{ tail -5 "$cache/apt-$2.log" >&2; die "apt-get install $2 failed"; }
}

apt_lists_done=0
apt_lists() { # apt-get update, once, and only when something must be fetched
	[ $apt_lists_done = 1 ] && return 0
	$apt update >"$cache/apt-update.log" 2>&1 ||
		say "apt-get update had errors (see $cache/apt-update.log)"
	apt_lists_done=1
}

fetch_deb() { # fetch_deb PACKAGE DIR: download and unpack into DIR
	local pkg=$1 dir=$2 dl
	dl=$(mktemp -d "$cache/dl.XXXXXX")
	apt_lists
	(cd "$dl" && $apt -o APT::Sandbox::User=root download "$pkg") \
		>"$cache/apt-download.log" 2>&1 ||
		{ tail -5 "$cache/apt-download.log" >&2; die "cannot download $pkg"; }
	mkdir -p "$dir"
	dpkg-deb --fsys-tarfile "$dl"/*.deb | tar -xf - -C "$dir" "${@:3}"
	rm -rf "$dl"
}

# The kernel, uncompressed where we can (it boots 5 s faster that way).
extract_vmlinux() { # extract_vmlinux VMLINUZ OUT
	local magic cmd off
	for try in '\xfd7zXZ\x00:xz' '\x28\xb5\x2f\xfd:zstd' '\x1f\x8b\x08:gzip'; do
		magic=${try%:*} cmd=${try##*:}
		command -v "$cmd" >/dev/null || continue
		for off in $(LC_ALL=C grep -aobP "$magic" "$1" | cut -d: -f1); do
			tail -c "+$((off + 1))" "$1" | "$cmd" -dc >"$2" 2>/dev/null || true
			[ "$(head -c 4 "$2" | tail -c 3)" = ELF ] && return 0
		done
	done
	rm -f "$2"
	return 1
}

prepare_kernel() {
	local real dir=$cache/kernel/$kernel tmp img
	[ $refresh = 0 ] && [ -f "$dir/version" ] && [ -f "$dir/modules/index" ] && return 0
	rm -rf "$dir"
	need_apt xz xz-utils
	apt_lists
	real=$(apt-cache depends "$kernel" 2>/dev/null |
		sed -n 's/^ *Depends: \(linux-image-.*\)$/\1/p' | head -n 1)
	real=${real:-$kernel}
	case $real in *6.1.*) ;; *) need_apt zstd zstd ;; esac
	say "fetching $real"
	tmp=$(mktemp -d "$cache/kernel.XXXXXX")
	fetch_deb "$real" "$tmp/deb" --exclude='*/kernel/drivers/gpu' \
		--exclude='*/kernel/sound' --exclude='*/kernel/drivers/media' \
		--exclude='*/kernel/drivers/net/wireless'
	img=$(echo "$tmp"/deb/boot/vmlinuz-*)
	[ -f "$img" ] || die "no kernel image in $real"
	extract_vmlinux "$img" "$tmp/kernel" || cp "$img" "$tmp/kernel"
	cp "$tmp"/deb/boot/config-* "$tmp/config"
	if [ -d "$tmp/deb/lib/modules" ]; then mv "$tmp"/deb/lib/modules/* "$tmp/modules"
	else mv "$tmp"/deb/usr/lib/modules/* "$tmp/modules"; fi
	(cd "$tmp/modules" && find kernel -name '*.ko*') >"$tmp/modules/index"
	basename "${img#*vmlinuz-}" >"$tmp/version"
	rm -rf "$tmp/deb"
	mkdir -p "$cache/kernel"
	mv "$tmp" "$dir"
}

prepare_busybox() {
	[ -x "$cache/busybox" ] && return 0
	fetch_deb busybox-static "$cache/bb"
	local b
	for b in "$cache"/bb/bin/busybox "$cache"/bb/usr/bin/busybox; do
		[ -f "$b" ] && cp "$b" "$cache/busybox.tmp"
	done
	mv "$cache/busybox.tmp" "$cache/busybox"
	rm -rf "$cache/bb"
}

prepare_klabctl() {
	local go=go
	[ "$cache/klabctl" -nt "$here/klabctl/main.go" ] && return 0
	command -v go >/dev/null || go=/usr/local/go/bin/go
	(cd "$here/klabctl" && CGO_ENABLED=0 GOFLAGS= GOWORK=off "$go" build \
		-trimpath -ldflags='-s -w' -o "$cache/klabctl" .) || die "cannot build klabctl"
}

prepare_softib() { # build softib.ko for this kernel in $kdir/softib
	local v h dep p d=$kdir/softib src=$softib_src
	[ -f "$src/main.c" ] || die "no softib source in $src"
	[ -f "$d/softib.ko" ] && [ -z "$(find "$src" -maxdepth 1 \( -name '*.[ch]' -o -name Makefile \) -newer "$d/softib.ko")" ] && return 0
	need_apt make make
	need_apt gcc-12 gcc-12
	v=$(cat "$kdir/version") h=$kdir/headers
	if [ ! -f "$h/.complete" ]; then
		say "fetching linux-headers-$v"
		rm -rf "$h"
		apt_lists
		dep=$(apt-cache depends "linux-headers-$v" | sed -n 's/^ *Depends: \(linux-\(headers\|kbuild\).*\)$/\1/p')
		for p in "linux-headers-$v" $dep; do fetch_deb "$p" "$h"; done
		touch "$h/.complete"
	fi
	echo "include $(echo "$h"/usr/src/linux-headers-*-common)/Makefile" >"$h/usr/src/linux-headers-$v/Makefile"
	say "building softib.ko"
	rm -rf "$d"
	mkdir "$d"
	cp "$src"/*.[ch] "$src/Makefile" "$d"
	make -C "$d" KDIR="$h/usr/src/linux-headers-$v" >"$d/log" 2>&1 ||
		{ grep -m 20 -E 'error|warning|Error' "$d/log" >&2; die "cannot build softib ($d/log)"; }
}

prepare_opensm() { # opensm, the ELF programs of infiniband-diags, their libraries
	local t p d=$cache/opensm
	[ -d "$d" ] && return 0
	t=$(mktemp -d "$cache/opensm.XXXXXX")
	for p in opensm infiniband-diags libopensm9 libosmcomp5 libosmvendor5 libibumad3 \
		libibmad5 libibnetdisc5 libwrap0 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 \
		libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 libc6; do
		say "fetching $p"
		fetch_deb "$p" "$t/deb"
	done
	mkdir -p "$t/root/lib64" "$t/root/lib/x86_64-linux-gnu" "$t/root/usr/sbin"
	cp -L "$t/deb/lib64/ld-linux-x86-64.so.2" "$t/root/lib64/"
	for p in libc.so.6 libresolv.so.2; do
		cp "$t/deb/lib/x86_64-linux-gnu/$p" "$t/root/lib/x86_64-linux-gnu/"
	done
	find "$t/deb" -name '*.so.*' -type l ! -path '*/gconv/*' | while read -r p; do
		cp -L "$p" "$t/root/lib/x86_64-linux-gnu/$(basename "$p")"
	done
	for p in "$t"/deb/usr/sbin/*; do
		[ "$(head -c 4 "$p" | tail -c 3)" = ELF ] && cp "$p" "$t/root/usr/sbin/"
	done
	mv "$t/root" "$d"
	rm -rf "$t"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
need_apt qemu-system-x86_64 qemu-system-x86
prepare_busybox
prepare_kernel
prepare_klabctl
kdir=$cache/kernel/$kernel
if [ $topology = softib ]; then
	prepare_softib
	[ $opensm = 0 ] || prepare_opensm
fi
flock -u 9
t1=$(now)
say "kernel $(cat "$kdir/version"), ready in $(echo "$t0 $t1" | awk '{printf "%.1f", $2-$1}') s"
[ $prepare_only = 0 ] || exit 0

# --- the guest's files ---------------------------------------------------

work=$(mktemp -d "${TMPDIR:-/tmp}/kernel-lab.XXXXXX")
qemu_pid='' tail_pid=''
cleanup() {
	[ -z "$qemu_pid" ] || kill "$qemu_pid" 2>/dev/null || true
	[ -z "$tail_pid" ] || kill "$tail_pid" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 125' INT TERM

root=$work/root
mkdir -p "$root"/{bin,dev,etc,lab,lib/modules,proc,run,sys,tmp,root}
cp "$cache/busybox" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
cp "$cache/klabctl" "$root/bin/klabctl"
cp "$here/init" "$root/init"
chmod 755 "$root/init"

loaded=" "
add_module() { # add_module NAME: with all that it depends on, in load order
	local name=${1//-/_} optional=0 path dep ko
	case $name in "?"*) optional=1 name=${name#?} ;; esac
	case $loaded in *" $name "*) return 0 ;; esac
	path=$(grep -m 1 "/${name//_/[-_]}\.ko" "$kdir/modules/index" || true)
	if [ -z "$path" ]; then
		grep -q "/${name//_/[-_]}\.ko" "$kdir/modules/modules.builtin" && return 0
		[ $optional = 1 ] && return 0
		die "no module $name in this kernel"
	fi
	path=$kdir/modules/$path
	ko=$root/lib/modules/$name.ko
	case $path in
	*.ko.xz) xz -dc "$path" >"$ko" ;;
	*.ko.zst) zstd -dcq "$path" >"$ko" ;;
	*) cp "$path" "$ko" ;;
	esac
	for dep in $(tr '\0' '\n' <"$ko" | sed -n 's/^depends=//p' | tr ',' ' '); do
		add_module "$dep"
	done
	loaded+="$name "
	echo "$name" >>"$root/lib/modules/order"
}
for m in $modules $extra_modules; do add_module "$m"; done

if [ $topology = softib ]; then
	cp "$kdir/softib/softib.ko" "$root/lib/modules/softib.ko"
	echo "softib" >>"$root/lib/modules/order"
	echo "$softib_args" >"$root/lib/modules/softib.args"
	[ $opensm = 0 ] || { cp -r "$cache/opensm/." "$root/"; cp "$here/sm" "$root/bin/sm"; chmod 755 "$root/bin/sm"; echo "$opensm_args" >"$root/lab/opensm"; }
fi

quote() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
prog=$1; shift
[ -x "$prog" ] || die "$prog is not an executable"
cp "$prog" "$root/lab/program"
{
	for e in ${envs[@]+"${envs[@]}"}; do
		echo "export ${e%%=*}=$(quote "${e#*=}")"
	done
	printf 'exec /lab/program'
	for a in "$@"; do printf ' %s' "$(quote "$a")"; done
	echo
} >"$root/lab/start"
echo "$topology" >"$root/lab/topology"
for f in ${files[@]+"${files[@]}"}; do
	src=${f%%:*} dst=${f#*:}
	[ "$dst" != "$f" ] || dst=/lab/$(basename "$src")
	mkdir -p "$root/$(dirname "$dst")"
	cp -rL "$src" "$root/$dst"
done
(cd "$root" && find . | "$cache/busybox" cpio -o -H newc) \
	>"$work/initramfs" 2>/dev/null
t2=$(now)

# --- boot ----------------------------------------------------------------
# ttyS0: kernel log, ttyS1: the program's output, ttyS2: its exit status.
boot() { # sets qrc, qemu's exit status, and status, the program's; "": none
	: >"$work/out"
	rm -f "$work/status"
	timeout -k 5 "$timeout_s" qemu-system-x86_64 \
		-machine pc -accel "$accel" -cpu "$cpu" -smp 1 -m "$mem" \
		-nodefaults -no-user-config -display none -no-reboot \
		-chardev "file,id=k,path=$work/kernel.log" -serial chardev:k \
		-chardev "file,id=o,path=$work/out" -serial chardev:o \
		-chardev "file,id=s,path=$work/status" -serial chardev:s \
		-kernel "$kdir/kernel" -initrd "$work/initramfs" \
		-append "console=ttyS0 loglevel=5 panic=-1 oops=panic reboot=t mitigations=off nokaslr \
no_timer_check cryptomgr.notests random.trust_cpu=on $append" \
		</dev/null >"$work/qemu.log" 2>&1 &
	qemu_pid=$!
	tail -n +1 -f --pid="$qemu_pid" -s 0.05 "$work/out" &
	tail_pid=$!
	qrc=0
	wait "$qemu_pid" || qrc=$?
	qemu_pid=''
	wait "$tail_pid" 2>/dev/null || true
	tail_pid=''
	status=$(tr -dc 0-9 <"$work/status" 2>/dev/null || true)
}

# Under emulation the kernel now and then (one boot of about 30 was seen to) dies
# while it patches its own code, before anything of ours runs: then it is booted
# again.
for try in 1 2 3; do
	boot
	if [ -n "$status" ] || [ "$qrc" != 0 ] || grep -q 'klab: .* userspace up' "$work/kernel.log"; then break; fi
	echo "kernel-lab: the kernel died before user space (boot $try of 3)" >&2
done
t3=$(now)

if [ "$verbose" = 1 ] || [ -z "$status" ]; then
	echo "--- kernel log" >&2
	tr -d '\r' <"$work/kernel.log" | { [ "$verbose" = 1 ] && cat || tail -n 30; } >&2
	cat "$work/qemu.log" >&2
	echo "$t0 $t1 $t2 $t3 $(stat -c %s "$work/initramfs")" | awk '{
		printf "--- prepare %.1f s, initramfs %.1f s (%.1f MiB), boot and run %.1f s\n",
		$2-$1, $3-$2, $5/1048576, $4-$3}' >&2
fi
if [ -n "$status" ]; then exit "$status"; fi
[ "$qrc" = 124 ] || [ "$qrc" = 137 ] && { echo "kernel-lab: out of time ($timeout_s s)" >&2; exit 124; }
die "the guest ended with no exit status (qemu: $qrc)"
