// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"acmd/bpf"
	"acmd/resolver/config"
	"acmd/resolver/control"

	"golang.org/x/sys/unix"
)

// topEvery is how often the screen is drawn anew.
const topEvery = time.Second

// topSource is where the counters are read from: the pins of a daemon, whether it
// lives or not, else a daemon that has none.
type topSource struct {
	from  string
	read  func(*bpf.Snapshot) error
	close func()
}

// top shows the counters until it is interrupted.
func (c *ctl) top(args []string) error {
	once := c.flags.Bool("once", false, "")
	dir := c.flags.String("bpf-dir", config.DefaultBPFDir, "")
	if err := c.noWords(args); err != nil {
		return err
	}
	src, err := c.openTop(bpf.PinDir(*dir, c.RunDir))
	if err != nil {
		return err
	}
	defer src.close()
	return c.runTop(src, *once)
}

// runTop shows readings each second until it is interrupted, or one.
func (c *ctl) runTop(src *topSource, once bool) error {
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	var last, now bpf.Snapshot
	if err := src.read(&last); err != nil {
		return err
	}
	if !once {
		if err := c.showTop(newTop(src, nil, &last)); err != nil {
			return err
		}
	}
	for {
		select {
		case <-c.ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := src.read(&now); err != nil {
			return err
		}
		if err := c.showTop(newTop(src, &last, &now)); err != nil || once {
			return err
		}
		last, now = now, bpf.Snapshot{}
	}
}

// openTop prefers the pins; the control socket is for daemons that could not pin.
func (c *ctl) openTop(dir string) (*topSource, error) {
	r, err := bpf.Load(dir)
	if err == nil {
		return &topSource{from: dir, read: r.Read, close: func() { r.Close() }}, nil
	}
	read := func(s *bpf.Snapshot) error { return c.do("GET", "counters", nil, s) }
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("counters: %w", err)
	}
	if err := read(new(bpf.Snapshot)); err != nil {
		if errors.Is(err, control.ErrUnavailable) {
			return nil, fmt.Errorf("no counters are pinned at %s, and %w", dir, err)
		}
		return nil, err
	}
	return &topSource{from: c.RunDir + "/" + control.SocketName, read: read, close: func() {}}, nil
}

// showTop prints one reading, on a terminal over the last one.
func (c *ctl) showTop(v *topView) error {
	if c.json {
		return c.writeJSON(v)
	}
	if f, ok := c.Stdout.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			c.printf("\x1b[H\x1b[2J")
		}
	}
	c.printf("%s\n", v.head())
	for _, t := range v.tables() {
		c.table(t)
		c.printf("\n")
	}
	return nil
}
