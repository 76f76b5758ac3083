// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

// PathMask returns the components of r that are not zero: what a query with this
// record should constrain. Beyond what ibacm derives it has NumPath and
// Preference, because a constraint that the client gave must reach the SA. A
// value of zero cannot be asked for this way (SL 0, QoS class 0, selector
// [GreaterThan]); set those bits yourself. RawTraffic is never set.
func PathMask(r *PathRecord) (m ComponentMask) {
	if r.ServiceID() != 0 {
		m |= PathServiceID
	}
	if !r.DGID().IsZero() {
		m |= PathDGID
	}
	if !r.SGID().IsZero() {
		m |= PathSGID
	}
	if r.DLID() != 0 {
		m |= PathDLID
	}
	if r.SLID() != 0 {
		m |= PathSLID
	}
	if r.FlowLabel() != 0 {
		m |= PathFlowLabel
	}
	if r.HopLimit() != 0 {
		m |= PathHopLimit
	}
	if r.TClass() != 0 {
		m |= PathTClass
	}
	if r.Reversible() {
		m |= PathReversible
	}
	if r.NumPath() != 0 {
		m |= PathNumPath
	}
	if r.PKey() != 0 {
		m |= PathPKey
	}
	if r.QoSClass() != 0 {
		m |= PathQoSClass
	}
	if r.SL() != 0 {
		m |= PathSL
	}
	m |= selMask(r[54], PathMTUSel, PathMTU)
	m |= selMask(r[55], PathRateSel, PathRate)
	m |= selMask(r[56], PathLifetimeSel, PathLifetime)
	if r.Preference() != 0 {
		m |= PathPreference
	}
	return m
}

// selMask returns the components of a byte with a selector in its upper two bits.
func selMask(b uint8, sel, value ComponentMask) (m ComponentMask) {
	if b>>6 != 0 {
		m |= sel
	}
	if b&0x3f != 0 {
		m |= value
	}
	return m
}
