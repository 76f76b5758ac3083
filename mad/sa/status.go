// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package sa

import "acmd/mad"

// classStatus has the texts of class-specific codes.
var classStatus = [...]string{
	StatusNoResources:            "no resources",
	StatusRequestInvalid:         "request invalid",
	StatusNoRecords:              "no records",
	StatusTooManyRecords:         "too many records",
	StatusInvalidGID:             "invalid GID",
	StatusInsufficientComponents: "insufficient components",
	StatusDenied:                 "denied",
	StatusPriority:               "priority suggested",
}

// StatusText says in a few words what the status of an SA's answer means; "unknown"
// for one that has no meaning. The low byte comes first: with it set the request never
// got to the class (13.4.7).
func StatusText(s mad.Status) string {
	switch {
	case s&mad.StatusBusy != 0:
		return "busy"
	case s&mad.StatusRedirect != 0:
		return "redirected to another port, which is not supported"
	}
	switch s.InvalidField() {
	case 1:
		return "class version not supported"
	case 2:
		return "method not supported"
	case 3:
		return "method and attribute not supported"
	case 7:
		return "invalid field"
	}
	if c := int(s.Class()); uint8(s) == 0 && c < len(classStatus) && classStatus[c] != "" {
		return classStatus[c]
	}
	return "unknown"
}
