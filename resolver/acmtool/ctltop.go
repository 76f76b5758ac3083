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
	from string
	read func(*bpf.Snapshot) error
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
		last, now = now, bpf.Snapshot{} // whose lists would be overwritten
	}
}

// openTop prefers the pins; the control socket is for daemons that could not pin,
// and for who may not look at pins: it is not said then whether there are any.
func (c *ctl) openTop(dir string) (*topSource, error) {
	pins := &topSource{from: dir, read: func(s *bpf.Snapshot) error { return readPins(dir, s) }}
	pinErr := pins.read(new(bpf.Snapshot))
	if !errors.Is(pinErr, fs.ErrNotExist) && !errors.Is(pinErr, fs.ErrPermission) {
		return pins, pinErr
	}
	socket := &topSource{
		from: c.RunDir + "/" + control.SocketName,
		read: func(s *bpf.Snapshot) error { return c.do("GET", "counters", nil, s) },
	}
	if err := socket.read(new(bpf.Snapshot)); err != nil {
		switch {
		case errors.Is(pinErr, fs.ErrPermission):
			return nil, fmt.Errorf("%w; %w", pinErr, err)
		case errors.Is(err, control.ErrUnavailable):
			return nil, fmt.Errorf("no counters are pinned at %s, and %w", dir, err)
		}
		return nil, err
	}
	return socket, nil
}

// readPins opens them anew each time: the next daemon may have replaced them.
func readPins(dir string, s *bpf.Snapshot) error {
	r, err := bpf.Load(dir)
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	defer r.Close()
	return r.Read(s)
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
