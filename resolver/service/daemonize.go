// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// readyFD names the environment variable with the descriptor on which a process
// in the background tells its parent that it serves.
const readyFD = "ACMD_READY_FD"

// maxSaid bounds what is kept of what that process says before.
const maxSaid = 256 << 10

// Daemonize starts this program again in a session of its own and returns once
// it serves clients, or with what it said when it did not get that far: a shell
// that starts acmd by hand learns whether it runs. args are the program's own,
// and must make it stay in the foreground. What a process that serves has said until
// then, as its log goes to standard error, goes to stderr.
func Daemonize(args []string, stderr io.Writer) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), readyFD+"=3")
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	errR, errW, err := os.Pipe()
	if err != nil {
		w.Close()
		return err
	}
	defer errR.Close()
	cmd.Stderr = errW
	err = cmd.Start()
	w.Close()
	errW.Close()
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	// It is read as it comes: a child that finds the pipe full would wait for us.
	said := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(io.LimitReader(errR, maxSaid))
		_, _ = io.Copy(io.Discard, errR)
		said <- strings.TrimSpace(string(text))
	}()
	ready, _ := io.ReadAll(r) // ends when the child closes its end or exits
	if len(ready) > 0 {
		if text := <-said; text != "" { // it has let go of the pipe
			fmt.Fprintln(stderr, text)
		}
		return cmd.Process.Release()
	}
	err = cmd.Wait()
	if text := <-said; text != "" {
		// The caller puts the program's name before it, as the child did.
		return errors.New(strings.TrimPrefix(text, "acmd: "))
	}
	return fmt.Errorf("the background process ended: %w", err)
}

// inBackground tells whether this process was started by Daemonize.
func inBackground(getenv func(string) string) bool { return getenv(readyFD) != "" }

// tellParent ends the wait of Daemonize, if this process was started by it, and
// lets go of the terminal and of the directory of the start.
func tellParent(getenv func(string) string) error {
	if !inBackground(getenv) {
		return nil
	}
	v := getenv(readyFD)
	fd, err := strconv.Atoi(v)
	if err != nil || fd < 3 {
		return fmt.Errorf("%s=%q is no descriptor", readyFD, v)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for std := range 3 {
		if err := syscall.Dup3(int(null.Fd()), std, 0); err != nil {
			return err
		}
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "ready")
	_, err = f.WriteString("ready\n")
	return errors.Join(err, f.Close())
}
