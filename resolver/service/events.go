// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import "acmd/mad/transport"

var _ transport.Watcher = (*fabricView)(nil)

// EventSources implements [transport.Watcher] for transports that can say how they
// learn what happens; of others nothing is listed, and the engine polls them.
func (v *fabricView) EventSources() []transport.EventSource {
	if w, ok := v.Fabric.(transport.Watcher); ok {
		return w.EventSources()
	}
	return nil
}
