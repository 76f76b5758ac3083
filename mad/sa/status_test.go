// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import (
	"testing"

	"acmd/mad"
)

func TestStatusText(t *testing.T) {
	for s, want := range map[mad.Status]string{
		0x0300: "no records", 0x0100: "no resources", 0x0800: "priority suggested", 0x0900: "unknown", 0: "unknown",
		0x0001: "busy", 0x0301: "busy", 0x0002: "redirected to another port, which is not supported",
		0x0004: "class version not supported", 0x000c: "method and attribute not supported", 0x001c: "invalid field",
		0x0010: "unknown", 0x0340: "unknown", // bits that are reserved: the class byte means nothing then
	} {
		if got := StatusText(s); got != want {
			t.Errorf("%#04x: %q, want %q", uint16(s), got, want)
		}
	}
}
