// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"encoding/json"
	"strings"

	"acmd/mad"
	"acmd/resolver/config"
	"acmd/resolver/control"
)

// do sends one request to the control socket.
func (c *ctl) do(method, verb string, in, out any) error {
	ctx, cancel := c.request()
	defer cancel()
	return control.NewClient(c.RunDir).Do(ctx, method, verb, in, out)
}

func (c *ctl) flush(args []string) error {
	var req control.FlushRequest
	var lid string
	c.flags.StringVar(&req.GID, "gid", "", "")
	c.flags.StringVar(&lid, "lid", "", "")
	c.flags.StringVar(&req.Dest, "dest", "", "")
	c.flags.StringVar(&req.Port, "port", "", "")
	c.flags.BoolVar(&req.All, "all", false, "")
	if err := c.noWords(args); err != nil {
		return err
	}
	// A destination may be written as for resolve.
	if s, ok := strings.CutPrefix(req.Dest, "lid:"); ok && lid == "" {
		req.Dest, lid = "", s
	} else if s, ok := strings.CutPrefix(req.Dest, "gid:"); ok && req.GID == "" {
		req.Dest, req.GID = "", s
	} else {
		req.Dest = strings.TrimPrefix(req.Dest, "name:")
	}
	n := 0
	for _, given := range []bool{req.GID != "", lid != "", req.Dest != "", req.Port != "", req.All} {
		if given {
			n++
		}
	}
	if n != 1 {
		return usagef("flush needs one of --gid, --lid, --dest, --port, --all")
	}
	if lid != "" {
		l, err := parseLID(lid)
		if err != nil {
			return usagef("--lid: %w", err)
		}
		req.LID = uint16(l)
	}
	if req.GID != "" {
		if _, err := mad.ParseGID(req.GID); err != nil {
			return usagef("--gid: %w", err)
		}
	}
	if req.Dest != "" {
		if _, _, err := config.Identity(req.Dest); err != nil {
			return usagef("--dest: %w", err)
		}
	}
	if dev, port, ok := strings.Cut(req.Port, "/"); req.Port != "" && (!ok || dev == "" || !isDigits(port)) {
		return usagef("--port: %q is not DEVICE/PORT", req.Port)
	}
	var reply control.FlushReply
	if err := c.do("POST", "flush", &req, &reply); err != nil {
		return err
	}
	if c.json {
		return c.writeJSON(reply)
	}
	c.printf("%d dropped\n", reply.Dropped)
	return nil
}

func (c *ctl) config(args []string) error {
	if err := c.noWords(args); err != nil {
		return err
	}
	var reply control.ConfigReply
	if err := c.do("GET", "config", nil, &reply); err != nil {
		return err
	}
	if c.json {
		return c.writeJSON(reply)
	}
	rows := [][]string{{"NAME", "VALUE", "FROM"}}
	for _, s := range reply.Settings {
		rows = append(rows, []string{s.Name, s.Value, s.Origin})
	}
	c.table(rows)
	return nil
}

// state is JSON either way: what it has is the daemon's to say.
func (c *ctl) state(args []string) error {
	if err := c.noWords(args); err != nil {
		return err
	}
	var reply json.RawMessage
	if err := c.do("GET", "state", nil, &reply); err != nil {
		return err
	}
	return c.writeJSON(reply)
}

func (c *ctl) reload(args []string) error {
	if err := c.noWords(args); err != nil {
		return err
	}
	var reply control.ReloadReply
	if err := c.do("POST", "reload", nil, &reply); err != nil {
		return err
	}
	if c.json {
		return c.writeJSON(reply)
	}
	for _, w := range reply.Warnings {
		c.printf("warning: %s\n", w)
	}
	c.printf("reloaded\n")
	return nil
}
