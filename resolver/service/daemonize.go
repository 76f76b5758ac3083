// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"bytes"
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

// Daemonize starts this program again in a session of its own and returns once
// it serves clients, or with what it said when it did not get that far: a shell
// that starts acmd by hand learns whether it runs. args are the program's own,
// and must make it stay in the foreground.
func Daemonize(args []string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	var said bytes.Buffer
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
	ready, _ := io.ReadAll(r) // ends when the child closes its end or exits
	if len(ready) > 0 {
		return cmd.Process.Release()
	}
	_, _ = io.Copy(&said, errR)
	err = cmd.Wait()
	if said.Len() > 0 {
		// The caller puts the program's name before it, as the child did.
		return errors.New(strings.TrimPrefix(strings.TrimSpace(said.String()), "acmd: "))
	}
	return fmt.Errorf("the background process ended: %w", err)
}

// tellParent ends the wait of Daemonize, if this process was started by it, and
// lets go of the terminal.
func tellParent(getenv func(string) string) error {
	v := getenv(readyFD)
	if v == "" {
		return nil
	}
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
	f := os.NewFile(uintptr(fd), "ready")
	_, err = f.WriteString("ready\n")
	return errors.Join(err, f.Close())
}
