// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"acmd/mad"
	"acmd/resolver"
	"acmd/resolver/control"
	"acmd/resolver/preload"
)

// serveAcquire is the verb acquire of the control socket. What cannot be acquired
// is a conflict, to tell it from a request that makes no sense.
func (d *Daemon) serveAcquire(w http.ResponseWriter, r *http.Request) {
	var in control.AcquireRequest
	err := control.ReadJSON(w, r, &in)
	var req resolver.AcquireRequest
	if err == nil {
		req, err = acquireRequest(&in)
	}
	if err != nil {
		control.WriteError(w, http.StatusBadRequest, fmt.Errorf("acquire: %w", err))
		return
	}
	got, err := d.engine.Acquire(&req)
	if err != nil {
		control.WriteError(w, http.StatusConflict, err)
		return
	}
	control.WriteJSON(w, control.AcquireReply{
		Device: got.Device, Port: got.Port, Index: got.SGID.Index, GID: got.SGID.GID.String(),
		Type: got.SGID.Type.String(), Interface: got.SGID.Interface,
	})
}

func acquireRequest(in *control.AcquireRequest) (r resolver.AcquireRequest, err error) {
	r.Incoming, r.Service = in.Incoming, in.Service
	if r.Listener, err = parseListener(in.Listener); err != nil {
		return r, err
	}
	for _, g := range []struct {
		text string
		set  func(mad.GID)
	}{{in.SGID, r.Path.SetSGID}, {in.DGID, r.Path.SetDGID}} {
		if g.text == "" {
			continue
		}
		gid, err := mad.ParseGID(g.text)
		if err != nil {
			return r, err
		}
		g.set(gid)
	}
	r.Path.SetSLID(mad.LID(in.SLID))
	r.Path.SetDLID(mad.LID(in.DLID))
	r.Path.SetPKey(mad.PKey(in.PKey))
	r.Path.SetServiceID(in.Service)
	ours, lid := r.Path.SGID(), in.SLID
	if r.Incoming {
		ours, lid = r.Path.DGID(), in.DLID
	}
	if ours.IsZero() && lid == 0 {
		return r, errors.New("the path has neither GID nor LID at our end")
	}
	if text, ok := strings.CutPrefix(in.Source, "gid:"); ok {
		gid, err := mad.ParseGID(text)
		r.Source = resolver.GIDAddr(gid)
		return r, err
	}
	if in.Source != "" {
		r.Source, err = preload.ParseAddr(strings.TrimPrefix(in.Source, "name:"))
	}
	return r, err
}

// parseListener reads DEVICE or DEVICE/PORT.
func parseListener(text string) (resolver.Listener, error) {
	if !strings.Contains(text, "/") {
		return resolver.Listener{Device: text}, nil
	}
	dev, port, ok := cutPort(text)
	if !ok {
		return resolver.Listener{}, fmt.Errorf("listener %q: want DEVICE or DEVICE/PORT", text)
	}
	return resolver.Listener{Device: dev, Port: port}, nil
}
