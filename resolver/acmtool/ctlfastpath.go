// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"encoding/json"
	"fmt"
	"slices"

	"acmd/resolver/control"
)

// fastPath shows or switches what the kernel answers.
func (c *ctl) fastPath(args []string) error {
	words, err := c.parse(args)
	if err != nil {
		return err
	}
	what := "status"
	if len(words) > 0 {
		what = words[0]
	}
	if len(words) > 1 || !slices.Contains([]string{"on", "off", "status"}, what) {
		return usagef("fast-path takes one of on, off, status: %q", words)
	}
	var reply json.RawMessage
	if what == "status" {
		err = c.do("GET", "fast-path", nil, &reply)
	} else {
		err = c.do("POST", "fast-path", &control.FastPathRequest{On: what == "on"}, &reply)
	}
	if err != nil {
		return err
	}
	if c.json {
		return c.writeJSON(reply)
	}
	var st struct {
		Setting  string
		On       bool
		Reason   string
		Port     int
		Paths    int
		Messages map[string]uint64
	}
	if err := json.Unmarshal(reply, &st); err != nil {
		return fmt.Errorf("fast-path: %w", err)
	}
	state := "off"
	if st.On {
		state = "on"
	}
	c.printf("fast path is %s (fast_path %s)\n", state, st.Setting)
	if st.Reason != "" {
		c.printf("reason: %s\n", st.Reason)
	}
	if st.Messages == nil {
		return nil
	}
	c.printf("port %d, %d paths\n", st.Port, st.Paths)
	rows := [][]string{{"MESSAGES", "COUNT"}}
	for name, n := range st.Messages {
		rows = append(rows, []string{name, fmt.Sprint(n)})
	}
	slices.SortFunc(rows[1:], func(a, b []string) int {
		if a[0] < b[0] {
			return -1
		}
		return 1
	})
	c.table(rows)
	return nil
}
