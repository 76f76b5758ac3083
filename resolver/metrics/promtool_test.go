// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"acmd/mad/madtest/peer"
)

// checkMetrics runs promtool's check over a page. It complains by its exit status
// or on standard error.
func checkMetrics(t *testing.T, page string) error {
	t.Helper()
	cmd := exec.Command(peer.Tool(t, "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(page)
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		return fmt.Errorf("promtool: %v\n%s", err, out)
	}
	return nil
}

// promtool, Prometheus' own check of names, types and help texts, has nothing to
// say of the page, and something of a bad one.
func TestPromtool(t *testing.T) {
	good := page(t, synthetic())
	if err := checkMetrics(t, good); err != nil {
		t.Error(err)
	}
	if err := checkMetrics(t, strings.ReplaceAll(good, "acmd_flights ", "acmd_flights_total ")); err == nil {
		t.Error("promtool takes a gauge that is named as a counter")
	}
}
