// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//go:build !verbs || !cgo

package verbs

import "acmd/mad/transport"

// Wrap fails: see [ErrNotBuilt].
func Wrap(transport.Fabric, Config) (transport.Fabric, error) { return nil, ErrNotBuilt }
