// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package privilege

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// words are a thread's capabilities as capset(2) takes them: the lower 32 first.
type words [2]unix.CapUserData

func (h Held) words() (w words) {
	for i := range w {
		shift := 32 * i
		w[i] = unix.CapUserData{
			Effective: uint32(h.Effective >> shift), Permitted: uint32(h.Permitted >> shift), Inheritable: uint32(h.Inheritable >> shift),
		}
	}
	return w
}

// With calls fn on a thread whose effective set is that part of effective that it
// has. The capabilities themselves are not given up: all is as before when With
// returns. What fn does on other goroutines is done with all.
func With(effective Set, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := withHere(effective, fn)
		if !errors.Is(err, errNotRestored) {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
		done <- err
	}()
	return <-done
}

var errNotRestored = errors.New("the thread has lost capabilities")

func withHere(effective Set, fn func() error) error {
	was, err := Read()
	if err != nil {
		return err
	}
	less := was
	less.Effective &= effective
	if err := less.setHere(); err != nil {
		return err
	}
	err = fn()
	if rerr := was.setHere(); rerr != nil {
		err = errors.Join(err, errNotRestored, rerr)
	}
	return err
}

// setHere changes the calling thread.
func (h Held) setHere() error {
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, h.words()
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

// Keep leaves every thread of the process with those capabilities of keep that it
// is permitted, and with nothing to hand on: they leave the bounding set too, where
// CAP_SETPCAP allows that. What is given up cannot be had again. The error says what
// is still there that should not be. Only one goroutine may call it at a time, and
// [With] must not run meanwhile.
func Keep(keep Set) error {
	was, err := Read()
	if err != nil {
		return err
	}
	want := Held{Permitted: was.Permitted & keep, Effective: was.Effective & keep, Bounding: was.Bounding}
	if was.Effective.Has(Of(unix.CAP_SETPCAP)) {
		want.Bounding = was.Bounding & keep
	}
	if was == want {
		return checkAll(want)
	}
	for round := 0; ; round++ {
		if err := want.setAll(was.Bounding &^ want.Bounding); err != nil {
			return err
		}
		// A thread can come from one that had not been reached yet, and be missed.
		err := checkAll(want)
		if err == nil || round == 3 {
			return err
		}
	}
}

// setAll takes the bounding set down first, as that needs a capability.
func (h Held) setAll(unbound Set) error {
	now, err := Read()
	if err != nil {
		return err
	}
	for c := range 64 {
		if !(unbound & now.Bounding).Has(Of(c)) {
			continue
		}
		if err := everyThread(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); err != nil {
			return fmt.Errorf("%s leaves the bounding set: %w", Of(c), err)
		}
	}
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, h.words()
	err = everyThread(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0)
	if err != nil {
		return fmt.Errorf("capset in every thread: %w", err)
	}
	return nil
}

// checkAll looks whether each thread has what it should and nothing else.
func checkAll(want Held) error {
	threads, err := Threads(os.Getpid())
	if err != nil {
		return err
	}
	for tid, h := range threads {
		if h != want {
			return fmt.Errorf("thread %d still has %s, with %s in the bounding set", tid, h.union(), h.Bounding)
		}
	}
	return nil
}
