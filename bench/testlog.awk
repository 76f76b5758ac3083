# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# testlog.awk: go test -v on stdin. Of a package that passes it prints the tests that
# were skipped, each with its reason, and the line of the result; all else as it came.
# The exit status is for go test to give (set -o pipefail).

function whole() { for (i = 0; i < n; i++) print line[i] }
function forget() { n = skips = 0; last = ""; split("", line); split("", why) }

{ line[n++] = $0 }

# === RUN, CONT, NAME: whose the log lines are that follow.
/^=== / { test = $3; last = ""; next }

# A log line: the last one before the end of a skipped test is its reason.
/^ +[A-Za-z0-9_]+\.go:[0-9]+: / { last = test; sub(/^ +[^ ]+ /, ""); why[test] = $0; next }
last != "" && /^        / { sub(/^ +/, ""); why[last] = why[last] " " $0; next }

/^ *--- SKIP: / { skipped[skips++] = $3 }
/^ *--- / { last = ""; next }

/^ok  \t/ {
	for (i = 0; i < skips; i++) print "skip\t" skipped[i] ": " why[skipped[i]]
	print
	fflush()
	forget()
}
/^\?   \t/ || /^FAIL\t/ { whole(); fflush(); forget() }

END { whole() }
