// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// defaultRunDir is the run directory whose pins need no hash in their name.
const defaultRunDir = "/run"

// PinDir is the pin directory of the daemon with a run directory: v1 below root
// for /run, v1-HASH for any other.
func PinDir(root, runDir string) string {
	if abs, err := filepath.Abs(runDir); err == nil {
		runDir = abs
	}
	if real, err := filepath.EvalSymlinks(runDir); err == nil {
		runDir = real // /var/run is /run
	}
	name := fmt.Sprintf("v%d", schema)
	if runDir != defaultRunDir {
		name += fmt.Sprintf("-%016x", xxhash.Sum64String(runDir))
	}
	return filepath.Join(root, name)
}

// Modes of what is pinned: everybody may read, and only the daemon write.
const (
	dirMode = 0o755
	pinMode = 0o444
)

// lockPins makes the pin directory and takes its lock, which ends with the
// process however that ends.
func lockPins(dir string) (*os.File, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("pin directory %s: not an absolute path", dir)
	}
	if err := onBPF(dir); err != nil {
		return nil, err
	}
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("pin directory: %w", err)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("pin directory: %w", err)
	}
	if err := takeLock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("pin directory %s: %w", dir, err)
	}
	return f, nil
}

// makeDir makes a directory and those above it with their mode, whatever the umask.
func makeDir(dir string) error {
	err := os.Mkdir(dir, dirMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, dirMode)
	}
	switch {
	case err == nil:
		return os.Chmod(dir, dirMode)
	case errors.Is(err, fs.ErrExist):
		return nil
	}
	return err
}

// takeLock locks a directory that is ours alone to write.
func takeLock(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("belongs to user %d", st.Uid)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrLocked
		}
		return err
	}
	if st.Mode&0o777 != dirMode {
		return f.Chmod(dirMode)
	}
	return nil
}

// ErrLocked tells that another daemon counts in a pin directory.
var ErrLocked = errors.New("another daemon has it")

// onBPF tells whether a directory is, or would be made, on a bpf file system.
func onBPF(dir string) error {
	for p := dir; ; p = filepath.Dir(p) {
		var st unix.Statfs_t
		switch err := unix.Statfs(p, &st); {
		case err == nil && st.Type == unix.BPF_FS_MAGIC:
			return nil
		case err == nil:
			return fmt.Errorf("pin directory %s: %s is not a bpf file system", dir, p)
		case !errors.Is(err, fs.ErrNotExist) || p == filepath.Dir(p):
			return fmt.Errorf("pin directory %s: %w", dir, err)
		}
	}
}

// pins lists the maps that are pinned. acm_meta comes last: with it the set is
// complete.
func (m *acmMaps) pins() []pin {
	return []pin{
		{acmMapAcmStats, &m.AcmStats}, {acmMapAcmEp, &m.AcmEp}, {acmMapAcmLat, &m.AcmLat}, {acmMapAcmSa, &m.AcmSa},
		{acmMapAcmFlight, &m.AcmFlight}, {acmMapAcmKstat, &m.AcmKstat}, {acmMapAcmMeta, &m.AcmMeta},
	}
}

type pin struct {
	name string
	m    **ebpf.Map
}

// openPins adopts what is pinned or replaces it as a whole: a map alone says
// nothing without those that its rows belong to.
func (m *Maps) openPins(spec *ebpf.CollectionSpec) error {
	err := m.adopt(spec)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("pinned counters are replaced, they start from 0", "dir", m.dir, "reason", err)
	}
	return m.create(spec)
}

func (m *Maps) adopt(spec *ebpf.CollectionSpec) (err error) {
	var have acmMaps
	defer func() {
		if err != nil {
			have.Close()
		}
	}()
	missing := 0
	list := have.pins()
	for _, p := range list {
		*p.m, err = m.loadPin(p.name)
		if errors.Is(err, fs.ErrNotExist) {
			missing++
			continue
		}
		if err != nil {
			return err
		}
		if err = spec.Maps[p.name].Compatible(*p.m); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	switch {
	case missing == len(list):
		return fs.ErrNotExist
	case missing > 0:
		return fmt.Errorf("%d of %d maps are missing", missing, len(list))
	}
	a, err := mapped(&have)
	if err != nil {
		return err
	}
	if err = checkHeader(a.head, spec.Maps[acmMapAcmKstat]); err != nil {
		return err
	}
	m.maps, m.arrays = have, a
	return nil
}

// loadPin opens a pin for writing. The mode keeps even its owner from that,
// unless he is root.
func (m *Maps) loadPin(name string) (*ebpf.Map, error) {
	path := filepath.Join(m.dir, name)
	got, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrPermission) {
		if err := os.Chmod(path, 0o644); err != nil {
			return nil, err
		}
		got, err = ebpf.LoadPinnedMap(path, nil)
		err = errors.Join(err, os.Chmod(path, pinMode))
	}
	if err != nil {
		got.Close() // there is one if only its mode could not be set back
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return got, nil
}

// checkHeader refuses counters of another layout.
func checkHeader(h *header, kstat *ebpf.MapSpec) error {
	switch {
	case h.Magic != magic:
		return fmt.Errorf("magic %#x", h.Magic)
	case h.Schema != schema:
		return fmt.Errorf("schema %d, this is %d", h.Schema, schema)
	case h.Kshards*maxEndpoints != kstat.MaxEntries || h.Endpoints == 0 || h.Endpoints > maxEndpoints:
		return fmt.Errorf("header does not make sense: %d endpoints, %d kernel shards", h.Endpoints, h.Kshards)
	}
	return nil
}

func (m *Maps) create(spec *ebpf.CollectionSpec) (err error) {
	var made acmMaps
	if err := spec.LoadAndAssign(&made, nil); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			made.Close()
		}
	}()
	a, err := mapped(&made)
	if err != nil {
		return err
	}
	list := made.pins()
	defer func() {
		if err != nil {
			for _, p := range list { // half of them are kernel memory for nothing
				_ = os.Remove(filepath.Join(m.dir, p.name))
			}
		}
	}()
	for i := len(list) - 1; i >= 0; i-- { // acm_meta goes first, as it came last
		if err = os.Remove(filepath.Join(m.dir, list[i].name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, p := range list {
		path := filepath.Join(m.dir, p.name)
		if err = (*p.m).Pin(path); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err = os.Chmod(path, pinMode); err != nil {
			return err
		}
	}
	m.maps, m.arrays = made, a
	return nil
}
