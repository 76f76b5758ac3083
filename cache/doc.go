// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package cache is the sharded path cache: from a [Key], which holds everything
// that constrains an answer, to a 64-byte path record in wire form.
package cache
