// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package control

// AcquireRequest asks which device, port and GID entry a connection uses, see
// resolver.AcquireRequest. Numbers are in host order; what is zero is not given.
type AcquireRequest struct {
	Listener string `json:"listener,omitempty"` // "mlx5_0" or "mlx5_0/1"; "": bound to no device
	Incoming bool   `json:"incoming,omitempty"` // the path is as the peer sees it
	SGID     string `json:"sgid,omitempty"`     // IPv6 text form
	DGID     string `json:"dgid,omitempty"`
	SLID     uint16 `json:"slid,omitempty"`
	DLID     uint16 `json:"dlid,omitempty"`
	PKey     uint16 `json:"pkey,omitempty"`
	Source   string `json:"source,omitempty"` // IPv4 or IPv6 address, name, or "gid:" and a GID
	Service  uint64 `json:"service,omitempty"`
}

// AcquireReply is what was found.
type AcquireReply struct {
	Device    string `json:"device"`
	Port      uint8  `json:"port"`
	Index     uint16 `json:"gid_index"`
	GID       string `json:"gid"`
	Type      string `json:"type"`                // "IB", "RoCE v1" or "RoCE v2"
	Interface string `json:"interface,omitempty"` // "": none, or not known
}
