// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"acmd/resolver/config"

	"golang.org/x/sys/unix"
)

// logFile is the log's destination, which can be opened again under way (after a
// rotation) without losing a line.
type logFile struct {
	journal string // JOURNAL_STREAM: which file the service manager reads and stamps

	mu      sync.Mutex
	file    *os.File
	stamped atomic.Bool // it is that one
}

// Write implements io.Writer; one call is one line.
func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Write(b)
}

// reopen opens path and closes what was open before. On an error the old file
// goes on.
func (l *logFile) reopen(path string) error {
	f, err := config.OpenLog(path)
	if err != nil {
		return err
	}
	l.mu.Lock()
	old := l.file
	l.file = f
	l.stamped.Store(isStream(f, l.journal))
	l.mu.Unlock()
	if old != nil && old != os.Stdout && old != os.Stderr {
		return old.Close()
	}
	return nil
}

func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == os.Stdout || l.file == os.Stderr {
		return nil
	}
	return l.file.Close()
}

// isStream tells whether a file is the one that JOURNAL_STREAM names, by device and
// inode: the variable is handed on to programs whose output goes elsewhere too
// (systemd.exec(5)).
func isStream(f *os.File, stream string) bool {
	var st unix.Stat_t
	return stream != "" && unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// openLog makes the daemon's logger. Lines are text; where the service manager
// stamps them itself they carry no time.
func (d *Daemon) openLog(s *config.Settings) error {
	d.logs = &logFile{journal: d.opts.Getenv("JOURNAL_STREAM")}
	if err := d.logs.reopen(s.LogFile); err != nil {
		return err
	}
	d.onStop(d.logs.Close)
	d.level.Set(s.SlogLevel())
	opts := &slog.HandlerOptions{Level: &d.level}
	opts.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case len(groups) > 0:
		case a.Key == slog.TimeKey && d.logs.stamped.Load():
			return slog.Attr{}
		case a.Key == slog.LevelKey && a.Value.Any() == slog.Level(config.LevelTrace):
			return slog.String(slog.LevelKey, "TRACE")
		}
		return a
	}
	d.log = slog.New(slog.NewTextHandler(d.logs, opts))
	return nil
}
