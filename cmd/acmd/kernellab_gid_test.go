// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"acmd/mad"
	"acmd/mad/sa"
	"acmd/mad/umad/kernellab"
	"acmd/resolver/control"
)

// GUIDInfoRecord (IBTA vol. 1, 15.2.5.18): LID, block, and eight GUIDs of the port.
const (
	attrGUIDInfoRecord uint16 = 0x0030
	methodDelete       uint8  = 0x15
	guidInfoMask              = sa.ComponentMask(1<<0 | 1<<1 | 1<<5) // LID, block, second GUID
)

// alias has the SM put a GUID into the second place of the source's table, or take
// it out.
func (l *kernelLab) alias(method uint8, guid mad.GUID) {
	l.t.Helper()
	m := l.exchange(func(m *mad.Packet) {
		sa.Init(m, method, attrGUIDInfoRecord, guidInfoMask)
		rec := m[sa.DataOffset:]
		binary.BigEndian.PutUint16(rec, uint16(l.info(labSource).LID))
		binary.BigEndian.PutUint64(rec[16:], uint64(guid))
	})
	if m.Status() != 0 {
		l.t.Fatalf("GUIDInfoRecord: status %#x", m.Status())
	}
}

// aliases lists the source's GIDs behind the first one.
func (l *kernelLab) aliases() (list []mad.GID) {
	l.t.Helper()
	l.look()
	for _, g := range l.info(labSource).GIDs[1:] {
		if g.GUID() != 0 {
			list = append(list, g)
		}
	}
	return list
}

// acquire asks acmctl for the GID entry of a source; "" and what it said if there is
// none.
func (l *kernelLab) acquire(gid mad.GID) (r control.AcquireReply, said string) {
	l.t.Helper()
	out, err := exec.Command(labAcmctl, "--run-dir", l.dir, "--json", "acquire", "--sgid", gid.String()).CombinedOutput()
	if err != nil {
		return r, string(out)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	return r, ""
}

// field case 50: the SM gives a port another GUID and takes it away again. The kernel
// tells nobody of that on an InfiniBand port, so a look has to find it. Meanwhile
// paths from it are resolved, the SA's byte for byte; then they are gone, and those
// of the first GID are not.
func TestKernelDaemonAliasGID(t *testing.T) {
	l := startLab(t)
	const guid mad.GUID = 0x02000000000a1101
	l.resolves("sib2")
	l.alias(mad.MethodSet, guid)
	t.Cleanup(func() {
		if len(l.aliases()) > 0 {
			l.alias(methodDelete, guid)
		}
	})
	var gid mad.GID
	kernellab.Eventually(t, "the port has the alias", func() bool {
		list := l.aliases()
		if len(list) == 1 {
			gid = list[0]
		}
		return len(list) == 1
	})
	if gid.GUID() != guid {
		t.Fatalf("the port has the GID %v", gid)
	}
	q := l.labQuery("sib2", false)
	q.SetSGID(gid)
	var got sa.PathRecord
	kernellab.Eventually(t, "path from the alias", func() (ok bool) {
		var err error
		got, err = l.ask(q)
		return err == nil
	})
	if got.SGID() != gid {
		t.Errorf("path from %v: %x", gid, got)
	}
	l.same("sib2", got, q)
	if r, said := l.acquire(gid); r.Device != labSource || r.Index != 1 || r.GID != gid.String() {
		t.Errorf("acquired %+v %s", r, said)
	}

	l.alias(methodDelete, guid)
	kernellab.Eventually(t, "the alias is gone", func() bool { return len(l.aliases()) == 0 })
	kernellab.Eventually(t, "its path is gone", func() bool { _, err := l.ask(q); return err != nil })
	if r, said := l.acquire(gid); r.Device != "" || !strings.Contains(said, "no ") {
		t.Errorf("acquired %+v %s", r, said)
	}
	if n := l.wireQueries(func() {
		if _, err := l.ask(l.labQuery("sib2", false)); err != nil {
			t.Errorf("path from the first GID: %v", err)
		}
	}); n != 0 {
		t.Errorf("%d queries for a path that was cached", n)
	}
}

// OpenSM comes back with another subnet prefix: the first GID of each port changes,
// and no path has the old ones.
func TestKernelDaemonSubnetPrefix(t *testing.T) {
	l := startLab(t)
	l.resolves("sib2")
	old := l.labQuery("sib2", false)
	kernellab.Run(t, "sm", "stop")
	l.restartSM("--subnet_prefix", "0xfec0000000000011")
	t.Cleanup(func() {
		kernellab.Run(t, "sm", "stop")
		l.restartSM()
	})
	const prefix = 0xfec0000000000011
	for _, device := range []string{labSource, "sib2", "sib3"} {
		kernellab.Eventually(t, device+" has the new prefix", func() bool { return kernellab.GID(t, device).Prefix() == prefix })
	}
	kernellab.Eventually(t, "the old path is gone", func() bool { _, err := l.ask(old); return err != nil })
	l.look()
	for _, device := range []string{"sib2", "sib3"} {
		if p := l.resolves(device); p.SGID().Prefix() != prefix || p.DGID().Prefix() != prefix {
			t.Errorf("path to %s: %x", device, p)
		}
	}
	if got, err := l.ask(old); err == nil {
		t.Errorf("a path between GIDs that are gone: %x", got)
	}
}

// A partition comes and goes (PKEY_CHANGE): it has an endpoint and paths as long as
// it is there.
func TestKernelDaemonPartition(t *testing.T) {
	l := startLab(t)
	const conf = "/etc/opensm/partitions.conf"
	set := func(more string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(conf, []byte("Default=0x7fff, ipoib: ALL=full;\n"+more), 0o644); err != nil {
			t.Fatal(err)
		}
		kernellab.Run(t, "sm", "sweep")
	}
	t.Cleanup(func() { os.Remove(conf); kernellab.Run(t, "sm", "sweep") })
	q := l.labQuery("sib2", false)
	q.SetPKey(0x8001)
	if got, err := l.ask(q); err == nil {
		t.Errorf("a path in a partition that is not there: %x", got)
	}
	set("Test=0x0001: ALL=full;\n")
	var got sa.PathRecord
	kernellab.Eventually(t, "path in the new partition", func() (ok bool) {
		var err error
		got, err = l.ask(q)
		return err == nil
	})
	if got.PKey() != 0x8001 {
		t.Errorf("path with P_Key %v: %x", got.PKey(), got)
	}
	set("")
	kernellab.Eventually(t, "the partition is gone", func() bool { _, err := l.ask(q); return err != nil })
	l.resolves("sib2")
}
