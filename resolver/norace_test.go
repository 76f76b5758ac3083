//go:build !race

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package resolver_test

// dayRounds is how often each event of the scripted day comes, dayIdle the longest
// time between two, in minutes.
const dayRounds, dayIdle = 4, 70
