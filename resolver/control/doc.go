// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// Package control is the operator's door: HTTP with JSON bodies over the unix
// socket RUNDIR/acmd.ctl, which only its owner may open (mode 0600).
//
//	POST /v1/flush   {"gid":G} {"lid":L} {"dest":D} {"port":"DEV/P"} {"all":true}
//	                 -> {"dropped":N}, after the invalidation is complete
//	GET  /v1/config  -> {"settings":[{"name","value","origin"}]}
//	GET  /v1/state   -> what the daemon is doing, for people; fields come and go
//	POST /v1/reload  -> {"warnings":[...]}
//	POST /v1/acquire [AcquireRequest] -> [AcquireReply]
//	GET  /v1/counters -> everything that is counted (bpf.Snapshot)
//	GET  /v1/fast-path, POST with {"on":B} -> the state of answers in the kernel
//
// An error is a status of 400 or above with {"error":"..."}. Further doors hang
// their verbs on [Server.Handle]. [Client] is the other side.
package control
