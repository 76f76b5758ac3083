//go:build race

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver_test

// The race detector makes everything ten times slower.
const dayRounds, dayIdle = 1, 1
