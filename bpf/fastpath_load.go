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
		test, err := selfTest(cfg, plan)
		if errors.Is(err, errUnread) {
			plan.Unread = unreadPsock
			test, err = selfTest(cfg, plan)
		}
		if err == nil {
			f, err := openFast(cfg, plan)
			if err != nil {
				return nil, errors.Join(err, test.close())
			}
			f.test = test
			return f, nil
		}
		err = fmt.Errorf("by %s: %w", plan.Insert, err)
		errs = append(errs, err)
		if errors.Is(err, unix.EPERM) || !capable() { // another way needs no less
			return nil, fmt.Errorf("CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed\n%w", errors.Join(errs...))
		}
	}
	return nil, errors.Join(errs...)
}

// capable tells whether the caller has what the programs take. Where one is missing the
// verifier may only find that a helper is not there.
func capable() bool {
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &data[0]); err != nil {
		return true // the kernel will say
	}
	has := func(c int) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	return has(unix.CAP_SYS_ADMIN) || has(unix.CAP_BPF) && has(unix.CAP_NET_ADMIN) && has(unix.CAP_PERFMON)
}

// Prove has the kernel show once more, on the listener of the self-test, that it
// mirrors a path, takes a client's socket onto the map and answers the client: for
// callers that have given up privileges since [LoadFast], or try what comes of it. It
// may be called until [Fast.EndProof], by one goroutine, on whose thread it makes the
// system calls.
func (f *Fast) Prove() error {
	if err := f.test.prove(); err != nil {
		return fmt.Errorf("the self-test's client once more: %w", err)
	}
	return nil
}

// EndProof lets go of the self-test, which is in the kernel twice until then.
func (f *Fast) EndProof() error {
	if f.test == nil {
		return nil
	}
	t := f.test
	f.test = nil
	return t.close()
}
