// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmsock

import (
	"encoding/json"
	"testing"
)

// An operator reads the counters as JSON: reasons by name, every one of them.
func TestStatsJSON(t *testing.T) {
	var st Stats
	for i := range st.Rejected {
		st.Rejected[i] = uint64(i + 1)
	}
	for i := range st.Closed {
		st.Closed[i] = uint64(i + 1)
	}
	for i := range st.Faults {
		st.Faults[i] = uint64(i)
	}
	for _, c := range []struct {
		v    any
		want string
	}{
		{st.Rejected, `{"clients":1,"descriptors":3,"kernel":4,"user":2}`},
		{st.Closed, `{"blocked":4,"client":1,"descriptor":7,"error":2,"framing":5,"partial":3,"shutdown":6}`},
		{st.Faults, `{"length":3,"opcode":2,"version":1}`},
	} {
		if b, err := json.Marshal(c.v); err != nil || string(b) != c.want {
			t.Errorf("%s, %v, want %s", b, err, c.want)
		}
	}
}
