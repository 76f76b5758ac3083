// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package privilege

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Held are the capabilities of a thread.
type Held struct {
	Inheritable, Permitted, Effective, Bounding, Ambient Set
}

// union is what a thread has in any set, the bounding set apart: that one gives
// nothing before the next execve().
func (h Held) union() Set { return h.Inheritable | h.Permitted | h.Effective | h.Ambient }

// Read reads those of the calling thread. All threads of a process have the same
// unless somebody changed one of them.
func Read() (Held, error) {
	runtime.LockOSThread() // the file is that of the thread that opens it, and goes with it
	defer runtime.UnlockOSThread()
	return readStatus("/proc/thread-self/status")
}

// Threads reads those of each thread of a process, by thread id.
func Threads(pid int) (map[int]Held, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return nil, err
	}
	list := make(map[int]Held, len(files))
	for _, file := range files {
		h, err := readStatus(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended since
		}
		if err != nil {
			return nil, err
		}
		tid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		list[tid] = h
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no threads are shown in /proc/%d/task", pid)
	}
	return list, nil
}

func readStatus(file string) (Held, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Held{}, err
	}
	h, err := parseStatus(string(text))
	if err != nil {
		return h, fmt.Errorf("%s: %w", file, err)
	}
	return h, nil
}

// parseStatus reads the lines CapInh, CapPrm, CapEff, CapBnd and CapAmb of proc(5),
// hexadecimal numbers.
func parseStatus(text string) (h Held, err error) {
	want := map[string]*Set{
		"CapInh": &h.Inheritable, "CapPrm": &h.Permitted, "CapEff": &h.Effective, "CapBnd": &h.Bounding, "CapAmb": &h.Ambient,
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		set := want[name]
		if set == nil {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return h, fmt.Errorf("%s: %w", name, err)
		}
		*set = Set(n)
		delete(want, name)
	}
	if len(want) > 0 {
		return h, fmt.Errorf("%d of the five sets of capabilities are missing", len(want))
	}
	return h, nil
}
