// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

// clang-14 is Debian 12's; the output is committed, and CI compares it.
//
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf -type acm_header -type acm_words -type acm_endpoint -type acm_hist -type acm_slow -type acm_kwords acm maps.bpf.c -- -mcpu=v3 -O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf fast fastpath.bpf.c -- -mcpu=v3 -O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf -type acm_ask trace tracepoints.bpf.c -- -mcpu=v3 -O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf -type acm_caller -type acm_call clients clients.bpf.c -- -mcpu=v3 -O2 -g -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu
