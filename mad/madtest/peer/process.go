// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package peer

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

const (
	startTime = 60 * time.Second // for a first sweep on a busy machine
	stopTime  = 5 * time.Second
	pollTime  = 10 * time.Millisecond
	toolTime  = 60 * time.Second
)

// Process is a program that runs until the test ends.
type Process struct {
	Name string
	Pid  int
	Log  string // standard output and error

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // valid then
}

// Start runs one of the tools in dir, with its output in dir/TOOL.log.
func Start(t testing.TB, dir, tool string, args ...string) *Process {
	t.Helper()
	return start(t, dir, nil, nil, Tool(t, tool), args...)
}

// Wait polls until ready is true. It fails the test when a minute is over or the
// program has ended.
func (p *Process) Wait(t testing.TB, what string, ready func() bool) {
	t.Helper()
	waitFor(t, p, what, ready)
}

// start runs a program in dir with its output in dir/NAME.log. extraLogs are
// shown with it when the test has failed.
func start(t testing.TB, dir string, env []string, extraLogs []string, name string, args ...string) *Process {
	t.Helper()
	return startReading(t, nil, dir, env, extraLogs, name, args...)
}

// startReading is start with a standard input, which stays the caller's.
func startReading(t testing.TB, stdin *os.File, dir string, env []string, extraLogs []string, name string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: filepath.Base(name), Log: filepath.Join(dir, filepath.Base(name)+".log"), done: make(chan struct{})}
	log, err := os.Create(p.Log)
	if err != nil {
		t.Fatalf("log of %s: %v", p.Name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(name, args...)
	p.cmd.Dir, p.cmd.Env = dir, append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if stdin != nil {
		p.cmd.Stdin = stdin
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}

	started := make(chan error)
	go func() {
		// The signal on the parent's death is on that of the thread: it has to
		// live as long as the program. It is not unlocked and so ends with this.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", p.Name, err)
	}
	p.Pid = p.cmd.Process.Pid
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			for _, f := range append([]string{p.Log}, extraLogs...) {
				t.Logf("%s, pid %d, last lines of %s:\n%s", p.Name, p.Pid, filepath.Base(f), tail(f, 15))
			}
		}
	})
	return p
}

// Stop ends the program: SIGTERM, and SIGKILL if it does not listen. The process
// is not reaped before it ends, so the signal reaches no other.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return
	case <-time.After(stopTime):
	}
	p.cmd.Process.Kill()
	<-p.done
}

// Kill ends the program without a chance to clean up.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// ended reports whether the program is gone and how it went.
func (p *Process) ended() (error, bool) {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %v\n%s", p.Name, p.cmd.ProcessState, tail(p.Log, 15)), true
	default:
		return nil, false
	}
}

// CPU returns the processor time of all threads of the program so far.
func (p *Process) CPU() time.Duration {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.Pid))
	var total time.Duration
	for _, f := range files {
		var ns int64
		if b, err := os.ReadFile(f); err == nil {
			fmt.Sscan(string(b), &ns)
		}
		total += time.Duration(ns)
	}
	return total
}

// waitFor polls until ready is true; it fails the test when the time is over or
// the program has ended.
func waitFor(t testing.TB, p *Process, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(startTime); !ready(); time.Sleep(pollTime) {
		if err, over := p.ended(); over {
			t.Fatalf("%s: %v", what, err)
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v\n%s", what, startTime, tail(p.Log, 15))
		}
	}
}

// tail returns the last n lines of a file.
func tail(file string, n int) []byte {
	b, err := os.ReadFile(file)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimRight(b, "\n"), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}

func contains(file, text string) bool {
	b, err := os.ReadFile(file)
	return err == nil && bytes.Contains(b, []byte(text))
}

// runTool runs a program to its end in dir and returns its output, both streams,
// and its exit status.
func runTool(t testing.TB, dir string, env []string, name string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = stopTime
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	timer := time.AfterFunc(toolTime, func() { cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	if cmd.ProcessState == nil || !cmd.ProcessState.Exited() {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}
