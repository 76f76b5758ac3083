//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The maps that the daemon opens and pins; no program. */
#define ACM_STAT_MAPS
#include "acm_maps.h"

char _license[] SEC("license") = "Dual BSD/GPL";
