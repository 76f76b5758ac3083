// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Words of a [FastPlan].
const (
	insertTC       = "tc"
	FastInsertIter = "iter"
	unreadRmem     = "rmem"
	unreadPsock    = "psock"
)

// fastPlans are the ways to do it, best first. Kernels before 5.11 have no coarse
// clock; 7.3 lets only iterators change a sockmap.
var fastPlans = []FastPlan{
	{Insert: insertTC, Unread: unreadRmem, Coarse: true},
	{Insert: FastInsertIter, Unread: unreadRmem, Coarse: true},
	{Insert: insertTC, Unread: unreadRmem},
	{Insert: FastInsertIter, Unread: unreadRmem},
}

// errUnread is the one failure of the self-test that another plan mends: kernels
// without "tcp_bpf: Add sk_rmem_alloc related logic for ingress redirection"
// (6.13 and stable kernels of its time) do not charge unread answers.
var errUnread = errors.New("an answer was given while another lay unread")

// LoadFast finds the way that works on this kernel, by trying, and loads it
// switched off. What decides is a test of the whole on a listener of its own, not
// the kernel's version. The error says why there is no fast path.
func LoadFast(cfg FastConfig) (*Fast, error) {
	var errs []error
	for _, plan := range fastPlans {
		if cfg.Insert != "" && cfg.Insert != plan.Insert {
			continue
		}
		plan.All = cfg.All
		err := selfTest(cfg, plan)
		if errors.Is(err, errUnread) {
			plan.Unread = unreadPsock
			err = selfTest(cfg, plan)
		}
		if err == nil {
			return openFast(cfg, plan)
		}
		err = fmt.Errorf("by %s: %w", plan.Insert, err)
		errs = append(errs, err)
		if errors.Is(err, unix.EPERM) { // another way needs no less
			errs = append(errs, errors.New("CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed"))
			break
		}
	}
	return nil, errors.Join(errs...)
}
