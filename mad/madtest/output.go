// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package madtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Output collects what is written to it, a log or what a process says. The zero
// value is empty. It is safe for concurrent use: tests read it while it grows.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer; it does not fail.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// Logger writes lines of text to it.
func (o *Output) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(o, nil)) }

// String is all of it.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Count is how often text is in it.
func (o *Output) Count(text string) int { return strings.Count(o.String(), text) }
