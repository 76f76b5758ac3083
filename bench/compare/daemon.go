// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"acmd/resolver/control"
)

const (
	startLimit = 60 * time.Second
	stopLimit  = 10 * time.Second
)

// process is a program that runs beside the comparison and ends with it.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// launch starts a program with its output in a log; it dies with this process.
func (b *bench) launch(cmd *exec.Cmd, log string) *process {
	p := &process{name: filepath.Base(cmd.Path), cmd: cmd, log: log, done: make(chan struct{})}
	f, err := os.Create(log)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	cmd.Stderr = f
	if cmd.Stdout == nil {
		cmd.Stdout = f
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The signal is on the death of the thread that started the program.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		b.Fatalf("start: %w", err)
	}
	b.Cleanup(p.stop)
	return p
}

// stop ends the program, by force if it does not listen. It may have ended.
func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return
	case <-time.After(stopLimit):
	}
	p.cmd.Process.Kill()
	<-p.done
}

func (p *process) pid() string { return strconv.Itoa(p.cmd.Process.Pid) }

// lastLines is the end of the log, for messages.
func (p *process) lastLines() string {
	text, _ := os.ReadFile(p.log)
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-8):], []byte("\n")))
}

// daemon is a running acmd.
type daemon struct {
	*process
	dir     string
	sock    string
	control *control.Client
	ready   time.Duration // from its start to its word to the service manager
}

// acmdConfig says how acmd is started.
type acmdConfig struct {
	fabric string
	opts   []string // lines of the options file
	addrs  []string // lines of the address file
	base   string   // options that come first, as one text
	dir    string   // run directory; "": a new one
}

// startAcmd runs the daemon and waits until it says that it is ready, the way it
// tells a service manager.
func (b *bench) startAcmd(c acmdConfig) *daemon {
	d := &daemon{dir: c.dir}
	if d.dir == "" {
		d.dir = b.TempDir()
	}
	d.sock, d.control = filepath.Join(d.dir, "ibacm-unix.sock"), control.NewClient(d.dir)
	opts := c.base + "log_file stderr\nbpf_dir none\nlock_file " + filepath.Join(d.dir, "pid") + "\n" + strings.Join(c.opts, "\n") + "\n"
	b.write(filepath.Join(d.dir, "opts.cfg"), opts)
	b.write(filepath.Join(d.dir, "addr.cfg"), strings.Join(c.addrs, "\n")+"\n")
	notify := filepath.Join(d.dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	args := []string{"-P", "-O", filepath.Join(d.dir, "opts.cfg"), "--run-dir", d.dir, "--fabric", c.fabric, "-A"}
	if len(c.addrs) > 0 {
		args = append(args, filepath.Join(d.dir, "addr.cfg"))
	} else {
		args = append(args, filepath.Join(d.dir, "none.cfg"))
	}
	cmd := exec.Command(b.acmd, args...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify)
	begin := time.Now()
	d.process = b.launch(cmd, filepath.Join(d.dir, "log"))
	if err := conn.SetReadDeadline(begin.Add(startLimit)); err != nil {
		b.Fatal(err)
	}
	go func() {
		<-d.done
		conn.SetReadDeadline(time.Unix(1, 0)) // closed by now when all went well
	}()
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			b.Fatalf("acmd is not ready: %w\n%s", err, d.lastLines())
		}
		if bytes.Contains(buf[:n], []byte("READY=1")) {
			d.ready = time.Since(begin)
			return d
		}
	}
}

// flush drops all cached paths.
func (d *daemon) flush(ctx context.Context) error {
	return d.control.Do(ctx, "POST", "flush", control.FlushRequest{All: true}, nil)
}

// startEcho builds and runs the C program that answers every request with record.
func (b *bench) startEcho(where string, record []byte) *process {
	program := filepath.Join(b.bin, "echo")
	b.command(filepath.Join(b.root, "bench", "lab", "echo"), "cc", "-O2", "-o", program, "echo.c")
	cmd := exec.Command(program, where, fmt.Sprintf("%x", record))
	in, err := cmd.StdinPipe() // it ends when this is closed
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close() })
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	p := b.launch(cmd, filepath.Join(b.bin, "echo.log"))
	w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "ready\n" {
		b.Fatalf("echo: %q, %v\n%s", line, err, p.lastLines())
	}
	return p
}

func (b *bench) write(file, text string) {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}

// freePort is a TCP port that nobody listened on a moment ago.
func (b *bench) freePort() int {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
