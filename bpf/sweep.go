// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// sweep removes the pins of daemons whose run directory is gone: nobody will go
// on from them, and they are kernel memory. Those of a daemon that lives are
// locked.
func sweep(root string, log *slog.Logger) {
	list, _ := os.ReadDir(root) // what cannot be read is not ours
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), fmt.Sprintf("v%d-", schema)) {
			continue
		}
		dir := filepath.Join(root, e.Name())
		if runDir, err := orphan(dir); err != nil {
			log.Warn("counters of a run directory that is gone", "dir", dir, "err", err)
		} else if runDir != "" {
			log.Info("counters of a run directory that is gone are removed", "dir", dir, "run_dir", runDir)
		}
	}
}

// orphan removes a pin directory if nobody has it and its run directory, which is
// returned, is gone.
func orphan(dir string) (runDir string, err error) {
	// Looked at before it is locked: a daemon that starts must not find its lock taken.
	if goneRunDir(dir) == "" {
		return "", nil
	}
	lock, err := os.Open(dir)
	if err != nil {
		return "", nil // went meanwhile, or is another user's
	}
	defer lock.Close()
	if takeLock(lock) != nil {
		return "", nil
	}
	if runDir = goneRunDir(dir); runDir == "" {
		return "", nil
	}
	for _, p := range new(acmMaps).pins() {
		if err := os.Remove(filepath.Join(dir, p.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return runDir, os.Remove(dir)
}

// goneRunDir returns the run directory that pins belong to if there is none any more,
// else "": also for pins that are not complete, which their daemon replaces.
func goneRunDir(dir string) string {
	meta, err := ebpf.LoadPinnedMap(filepath.Join(dir, acmMapAcmMeta), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return ""
	}
	defer meta.Close()
	var h header
	if meta.Lookup(uint32(0), &h) != nil || h.Magic != magic {
		return ""
	}
	runDir := cString(h.RunDir[:])
	if _, err := os.Stat(runDir); runDir == "" || !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return runDir
}
