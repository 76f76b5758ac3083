// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build !linux

package cache

func adviseHuge([]bucket, []entry) {}

func (c *Cache) populate() {}
