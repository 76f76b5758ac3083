// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"fmt"
	"net/http"

	"acmd/resolver"
	"acmd/resolver/config"
	"acmd/resolver/control"
	"acmd/resolver/fastpath"
)

// newFastPath makes the kernel's copy of the cache before the engine, which has to
// keep it true. nil: it is switched off, and nothing is there that could cost.
func (d *Daemon) newFastPath(s *config.Settings) resolver.Mirror {
	if s.FastPath == config.FastPathOff {
		return nil
	}
	d.fast = fastpath.New(fastpath.Config{
		All: s.FastPath == config.FastPathAll, Clients: s.MaxClients, Maps: d.counters, Log: d.log,
		Insert: d.opts.inserter, Changed: d.announceFastPath,
	})
	return d.fast
}

// loadFastPath has the kernel take the programs once their listener is there. nil:
// clients are served as ever; what is missing is said in the log and in the state.
func (d *Daemon) loadFastPath() fastpath.Kernel {
	if d.fast == nil {
		return nil
	}
	port, err := d.door.FastPort()
	if err != nil {
		d.fast.Fail(err)
		return nil
	}
	k, err := d.fast.Load(port)
	if err != nil {
		d.fast.Fail(err)
		return nil
	}
	return k
}

// startFastPath brings the fast path up before anybody is served. unproven is what
// came of trying the programs after capabilities were dropped.
func (d *Daemon) startFastPath(k fastpath.Kernel, unproven error) {
	if k == nil {
		return
	}
	if unproven != nil {
		d.fast.Fail(errors.Join(unproven, k.Close()))
		return
	}
	if err := k.EndProof(); err != nil {
		d.log.Warn("the self-test of the fast path does not end", "err", err)
	}
	port, _ := d.door.FastPort()
	d.door.UseFast(d.fast)
	d.fast.Start(k, d.engine)
	d.log.Info("clients on this port are answered in the kernel", "port", port, "plan", fmt.Sprintf("%+v", k.Plan()))
}

// announceFastPath leads librdmacm to the port while the fast path is on.
func (d *Daemon) announceFastPath(on bool) {
	if err := d.door.Announce(on); err != nil {
		d.log.Error("port file", "err", err)
	}
}

// stopFastPath ends it; its clients' connections are closed.
func (d *Daemon) stopFastPath() error {
	if d.fast == nil {
		return nil
	}
	return d.fast.Stop()
}

// fastPathTopology has the kernel follow the endpoints; on the engine's topology
// goroutine.
func (d *Daemon) fastPathTopology() {
	if d.fast != nil {
		d.fast.TopologyChanged()
	}
}

// fastPathState is what `acmctl state` and `acmctl fast-path` show.
type fastPathState struct {
	Setting string `json:"setting"`
	Port    uint16 `json:"port,omitempty"`
	fastpath.State
}

func (d *Daemon) fastPathState() (st fastPathState) {
	if d.fast == nil {
		st.Setting = config.FastPathOff.String()
		return st
	}
	st.Setting = d.first.FastPath.String()
	st.Port, _ = d.door.FastPort()
	st.State = d.fast.State()
	return st
}

// serveFastPath adds the operator's switch to the control socket. Once it answered
// "off", no request that is sent later is answered by the kernel.
func (d *Daemon) serveFastPath(ctl *control.Server) {
	ctl.Handle("GET /v1/fast-path", func(w http.ResponseWriter, _ *http.Request) { control.WriteJSON(w, d.fastPathState()) })
	ctl.Handle("POST /v1/fast-path", func(w http.ResponseWriter, r *http.Request) {
		var req control.FastPathRequest
		if err := control.ReadJSON(w, r, &req); err != nil {
			control.WriteError(w, http.StatusBadRequest, fmt.Errorf("fast-path: %w", err))
			return
		}
		if err := d.switchFastPath(req.On); err != nil {
			control.WriteError(w, http.StatusConflict, err)
			return
		}
		control.WriteJSON(w, d.fastPathState())
	})
}

func (d *Daemon) switchFastPath(on bool) error {
	switch {
	case d.fast != nil:
		return d.fast.Switch(on)
	case on:
		return fmt.Errorf("%w: fast_path is off in the configuration", fastpath.ErrOff)
	}
	return nil
}
