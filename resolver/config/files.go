// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package config

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileMode is the mode of the log and of the lock file.
const fileMode = 0o640

// ErrLocked is what Lock returns while another process holds the lock.
var ErrLocked = errors.New("another instance is running")

// OpenLog opens a log file for appending, or stands in with standard output or
// standard error for the words "stdout" and "stderr". A new file gets mode 0640
// whatever the umask. Existing files keep their content; one that is a symbolic
// link, has a second name, or belongs to somebody else is refused, so that a log
// in a directory that others can write to cannot be turned into another file.
func OpenLog(path string) (*os.File, error) {
	switch path {
	case "stdout":
		return os.Stdout, nil
	case "stderr":
		return os.Stderr, nil
	}
	f, err := openOwn(path, unix.O_WRONLY|unix.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("log file %s: %w", path, err)
	}
	return f, nil
}

// openOwn opens or creates a file without following a link in the last element
// of its path and takes the write permission for group and others off it.
func openOwn(path string, flags int) (*os.File, error) {
	// O_NONBLOCK: a FIFO put at the path must not hold us up. It has no
	// effect on a regular file.
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK
	fd, created := -1, false
	var err error
	// Creation is exclusive, so that the mode is set on our own file only. The
	// loop is for a file that comes or goes between the two calls.
	for range 8 {
		fd, err = openRetry(path, flags, 0)
		if !errors.Is(err, unix.ENOENT) {
			break
		}
		fd, err = openRetry(path, flags|unix.O_CREAT|unix.O_EXCL, fileMode)
		if created = err == nil; created || !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, errors.New("is a symbolic link")
	case errors.Is(err, unix.ENXIO):
		return nil, errors.New("is a FIFO or a socket")
	case err != nil:
		return nil, err
	}
	if err := checkOwn(fd, created); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openRetry(path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Open(path, flags, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func checkOwn(fd int, created bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case created:
		return unix.Fchmod(fd, fileMode)
	case st.Mode&unix.S_IFMT == unix.S_IFCHR: // /dev/null, a console
		return nil
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("is not a regular file")
	case st.Nlink > 1:
		return fmt.Errorf("has %d names", st.Nlink)
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return fmt.Errorf("belongs to user %d", st.Uid)
	case st.Mode&0o022 != 0:
		return unix.Fchmod(fd, st.Mode&0o7777&^0o022)
	}
	return nil
}

// LockFile is a lock that this process holds until Close or its end.
type LockFile struct{ f *os.File }

// Lock takes the lock that keeps a second instance out, before anything else is
// touched, and writes the process id into its file (decimal, newline). It is a
// record lock over the whole file, so it excludes ibacm on the same path too;
// the kernel drops it with its process, however that ends. ErrLocked is wrapped
// when another process, or this one, holds it.
func Lock(path string) (*LockFile, error) {
	f, err := openOwn(path, unix.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	// An open file description lock: unlike a plain record lock it is not lost
	// when some other descriptor of the file is closed in this process.
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk); err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			err = fmt.Errorf("%w%s", ErrLocked, holder(f))
		}
		f.Close()
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	return &LockFile{f}, nil
}

// holder names the process id in a lock file, for the message only.
func holder(f *os.File) string {
	var b [24]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, err := strconv.ParseUint(strings.TrimSpace(string(b[:n])), 10, 32)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}

// Close gives the lock back. The file stays: removing it could take the lock
// from an instance that has just opened it.
func (l *LockFile) Close() error { return l.f.Close() }
