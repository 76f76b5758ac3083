// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package acmtool

import (
	"strconv"

	"acmd/mad"
	"acmd/resolver/control"
)

// acquire asks which device, port and GID entry a connection uses.
func (c *ctl) acquire(args []string) error {
	var req control.AcquireRequest
	var slid, dlid, pkey, service string
	c.flags.StringVar(&req.Listener, "listener", "", "")
	c.flags.BoolVar(&req.Incoming, "incoming", false, "")
	c.flags.StringVar(&req.Source, "source", "", "")
	c.flags.StringVar(&req.SGID, "sgid", "", "")
	c.flags.StringVar(&req.DGID, "dgid", "", "")
	c.flags.StringVar(&slid, "slid", "", "")
	c.flags.StringVar(&dlid, "dlid", "", "")
	c.flags.StringVar(&pkey, "pkey", "", "")
	c.flags.StringVar(&service, "service", "", "")
	if err := c.noWords(args); err != nil {
		return err
	}
	for _, l := range []struct {
		flag, text string
		to         *uint16
	}{{"slid", slid, &req.SLID}, {"dlid", dlid, &req.DLID}} {
		if l.text == "" {
			continue
		}
		v, err := parseLID(l.text)
		if err != nil {
			return usagef("--%s: %w", l.flag, err)
		}
		*l.to = uint16(v)
	}
	for _, g := range []struct{ flag, text string }{{"sgid", req.SGID}, {"dgid", req.DGID}} {
		if _, err := mad.ParseGID(g.text); g.text != "" && err != nil {
			return usagef("--%s: %w", g.flag, err)
		}
	}
	if pkey != "" {
		v, err := strconv.ParseUint(pkey, 0, 16)
		if err != nil {
			return usagef("--pkey: %q is not a P_Key", pkey)
		}
		req.PKey = uint16(v)
	}
	if service != "" {
		var err error
		if req.Service, err = strconv.ParseUint(service, 0, 64); err != nil {
			return usagef("--service: %q is not a service ID", service)
		}
	}
	if ours := req.SGID + slid; !req.Incoming && ours == "" {
		return usagef("acquire needs --sgid or --slid, our end of the path")
	}
	if ours := req.DGID + dlid; req.Incoming && ours == "" {
		return usagef("acquire --incoming needs --dgid or --dlid, our end of the path")
	}
	var reply control.AcquireReply
	if err := c.do("POST", "acquire", &req, &reply); err != nil {
		return err
	}
	if c.json {
		return c.writeJSON(reply)
	}
	c.table([][]string{
		{"DEVICE", "PORT", "INDEX", "GID", "TYPE", "INTERFACE"},
		{reply.Device, strconv.Itoa(int(reply.Port)), strconv.Itoa(int(reply.Index)), reply.GID, reply.Type, reply.Interface},
	})
	return nil
}
