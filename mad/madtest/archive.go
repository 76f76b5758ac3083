// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"os"
	"strings"
	"testing"
)

// Archive reads a fixture in the form of txtar: a comment, then files, each behind a
// line "-- name --". It returns the files by name.
func Archive(t testing.TB, fixture string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(fixture)
	if err != nil {
		t.Fatal(err)
	}
	files, name := map[string]string{}, ""
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(n, " --\n") {
			name = strings.TrimSuffix(n, " --\n")
			files[name] = ""
		} else if name != "" {
			files[name] += line
		}
	}
	return files
}
