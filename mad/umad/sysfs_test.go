// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"acmd/mad"
	"acmd/mad/madtest"
	"acmd/mad/transport"

	"github.com/google/go-cmp/cmp"
)

// tree writes the files of a fixture below a new directory and returns that and
// the section "want".
func tree(t testing.TB, fixture string) (root, want string) {
	t.Helper()
	root = t.TempDir()
	files := madtest.Archive(t, fixture)
	want = files["want"]
	delete(files, "want")
	for name, text := range files {
		writeFile(t, filepath.Join(root, name), text)
	}
	return root, want
}

func writeFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// show writes what was read in the form of the fixtures.
func show(list []transport.Device) string {
	var b strings.Builder
	layers := map[transport.LinkLayer]string{transport.LinkInfiniBand: "InfiniBand", transport.LinkEthernet: "Ethernet", transport.LinkOther: "other"}
	for _, d := range list {
		fmt.Fprintf(&b, "%s guid %v\n", d.Name, d.NodeGUID)
		for _, p := range d.Ports {
			fmt.Fprintf(&b, "  port %d %s %v", p.Num, layers[p.LinkLayer], p.State)
			if p.LinkLayer != transport.LinkInfiniBand {
				fmt.Fprintln(&b)
				continue
			}
			fmt.Fprintf(&b, " lid %v lmc %d sm %v sl %d cap 0x%x rate %d\n", p.LID, p.LMC, p.SMLID, p.SMSL, p.CapMask, p.Rate)
			for i, g := range p.GIDs {
				fmt.Fprintf(&b, "    gid %d %v\n", i, g)
			}
			for i, k := range p.PKeys {
				fmt.Fprintf(&b, "    pkey %d %v\n", i, k)
			}
			fmt.Fprintf(&b, "    sa pkey index %d\n", p.SAPKeyIndex())
		}
	}
	return b.String()
}

// showUmads lists every umad device that leads to a port.
func showUmads(s sysfs, list []transport.Device) string {
	var lines []string
	for _, d := range list {
		for _, p := range d.Ports {
			if name, err := s.umadName(d.Name, p.Num); err == nil {
				lines = append(lines, fmt.Sprintf("%s is %s port %d\n", name, d.Name, p.Num))
			}
		}
	}
	sort.Slice(lines, func(i, j int) bool {
		a, _, _ := strings.Cut(lines[i], " ")
		b, _, _ := strings.Cut(lines[j], " ")
		return naturalLess(a, b)
	})
	return strings.Join(lines, "")
}

func TestSysfsFixtures(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 7 {
		t.Fatalf("fixtures: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			root, want := tree(t, file)
			s := sysfs{root: filepath.Join(root, "sys")}
			list, err := s.devices()
			if err != nil {
				t.Fatalf("devices: %v", err)
			}
			got := show(list) + showUmads(s, list)
			if err := s.checkABI(); err != nil {
				got += err.Error() + "\n"
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// field case 20: no module and no hardware are no errors of the list, and an open
// says what is missing. Nothing below DevRoot is touched.
func TestNothingThere(t *testing.T) {
	madtest.CheckLeaks(t)
	for file, wantErr := range map[string]error{"no-module": ErrNoModule, "no-hardware": transport.ErrNoPort} {
		root, _ := tree(t, "testdata/"+file+".txtar")
		f, err := New(Config{SysRoot: filepath.Join(root, "sys"), DevRoot: filepath.Join(root, "dev")})
		if err != nil {
			t.Fatal(err)
		}
		if list, err := f.Devices(); len(list) != 0 || err != nil {
			t.Errorf("%s: devices %v, %v", file, list, err)
		}
		if p, err := f.Open("mlx5_0", 1); p != nil || !errors.Is(err, wantErr) {
			t.Errorf("%s: open: %v, %v; want %v", file, p, err, wantErr)
		}
		// A device that comes later is seen.
		writePort(t, root, "mlx5_0", 1, 5)
		if list, err := f.Devices(); len(list) != 1 || len(list[0].Ports) != 1 || err != nil {
			t.Errorf("%s: devices %v, %v; want the new one", file, list, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A device that is going away, or coming, is there without ports for a moment, or
// with ports that lack their tables or their state.
func TestDeviceGoesAway(t *testing.T) {
	for _, gone := range []string{"1/gids", "1/pkeys", "1/state", "1"} {
		root := t.TempDir()
		s := sysfs{root: filepath.Join(root, "sys")}
		writePort(t, root, "mlx5_0", 1, 5)
		writePort(t, root, "mlx5_1", 1, 6)
		if err := os.RemoveAll(filepath.Join(root, "sys/class/infiniband/mlx5_0/ports", gone)); err != nil {
			t.Fatal(err)
		}
		if list, err := s.devices(); len(list) != 1 || list[0].Name != "mlx5_1" || err != nil {
			t.Errorf("without ports/%s: devices %v, %v; want mlx5_1 alone", gone, list, err)
		}
	}
}

// A port whose device node is missing, or is no umad device, is told apart.
func TestOpenWithoutDevice(t *testing.T) {
	madtest.CheckLeaks(t)
	root, _ := tree(t, "testdata/two-port-mlx5.txtar")
	f, err := New(Config{SysRoot: filepath.Join(root, "sys"), DevRoot: filepath.Join(root, "dev")})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Open("mlx5_0", 1); !errors.Is(err, transport.ErrNoPort) || !strings.Contains(err.Error(), "umad0") {
		t.Errorf("no device node: %v", err)
	}
	writeFile(t, filepath.Join(root, "dev/infiniband/umad0"), "not a character device")
	if _, err := f.Open("mlx5_0", 1); err == nil || errors.Is(err, transport.ErrNoPort) || !strings.Contains(err.Error(), "P_Key index") {
		t.Errorf("no umad device: %v", err)
	}
}

// field case 20: opening a port of another link layer is refused before the device
// is touched.
func TestOpenEthernet(t *testing.T) {
	root, _ := tree(t, "testdata/mixed-link-layers.txtar")
	writeFile(t, filepath.Join(root, "dev/infiniband/umad1"), "") // would fail otherwise
	f, err := New(Config{SysRoot: filepath.Join(root, "sys"), DevRoot: filepath.Join(root, "dev")})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Open("mlx4_0", 2); !errors.Is(err, transport.ErrNoPort) || !strings.Contains(err.Error(), "not an InfiniBand port") {
		t.Errorf("open of an Ethernet port: %v", err)
	}
}

// writePort writes a usable port, with a umad device of its own.
func writePort(t testing.TB, root, device string, num, lid int) {
	dir := filepath.Join(root, "sys/class/infiniband", device)
	writeFile(t, filepath.Join(dir, "node_guid"), "0002:c903:00a1:b2c3\n")
	for name, text := range map[string]string{
		"state": "4: ACTIVE\n", "link_layer": "InfiniBand\n", "lid": fmt.Sprintf("0x%x\n", lid), "sm_lid": "0x1\n",
		"gids/0": fmt.Sprintf("fe80:0000:0000:0000:0000:0000:0000:%04x\n", lid), "pkeys/0": "0xffff\n",
	} {
		writeFile(t, filepath.Join(dir, "ports", fmt.Sprint(num), name), text)
	}
	mad := filepath.Join(root, "sys/class/infiniband_mad", fmt.Sprintf("umad%d", lid))
	writeFile(t, filepath.Join(mad, "ibdev"), device+"\n")
	writeFile(t, filepath.Join(mad, "port"), fmt.Sprintf("%d\n", num))
}

// field case 28: 130 devices, and one with 255 ports, which an 8-bit loop would
// not survive.
func TestManyDevicesAndPorts(t *testing.T) {
	root := t.TempDir()
	const devices, ports = 130, 255
	for i := range devices {
		writePort(t, root, fmt.Sprintf("mlx5_%d", i), 1, 1000+i)
	}
	for p := 1; p <= ports; p++ {
		writePort(t, root, "big0", p, p)
	}
	s := sysfs{root: filepath.Join(root, "sys")}
	list, err := s.devices()
	if err != nil || len(list) != devices+1 {
		t.Fatalf("%d devices, %v", len(list), err)
	}
	if list[0].Name != "big0" || len(list[0].Ports) != ports {
		t.Fatalf("%s has %d ports", list[0].Name, len(list[0].Ports))
	}
	for i, p := range list[0].Ports {
		if int(p.Num) != i+1 || int(p.LID) != i+1 || p.State != mad.PortActive {
			t.Fatalf("port %d: %+v", i+1, p)
		}
	}
	for _, num := range []uint8{1, 128, 255} {
		if name, err := s.umadName("big0", num); err != nil || name != fmt.Sprintf("umad%d", num) {
			t.Fatalf("port %d: %s, %v", num, name, err)
		}
	}
	for i, d := range list[1:] {
		if d.Name != fmt.Sprintf("mlx5_%d", i) || len(d.Ports) != 1 || int(d.Ports[0].LID) != 1000+i {
			t.Fatalf("device %d is %+v", i, d)
		}
	}
}

// A device that goes away while it is read leaves nothing half read in the list,
// whichever attribute is the first that is missing.
func TestGoesAwayWhileRead(t *testing.T) {
	count := 0
	for at := 0; ; at++ {
		root := t.TempDir()
		writePort(t, root, "mlx5_0", 1, 5)
		writePort(t, root, "mlx5_1", 1, 6)
		reads, goneNow := 0, false
		s := sysfs{root: filepath.Join(root, "sys")}
		s.read = func(path string) ([]byte, error) {
			if strings.Contains(path, "mlx5_0") {
				if reads++; reads > at {
					goneNow = true
					if err := os.RemoveAll(filepath.Join(root, "sys/class/infiniband/mlx5_0/ports")); err != nil {
						t.Fatal(err)
					}
				}
			}
			return os.ReadFile(path)
		}
		list, err := s.devices()
		if err != nil {
			t.Fatal(err)
		}
		var ports int
		for _, d := range list {
			for _, p := range d.Ports {
				if ports++; p.LID == 0 || len(p.GIDs) != 1 || len(p.PKeys) != 1 || p.SMLID != 1 {
					t.Errorf("gone at read %d: %s has a half port %+v", at+1, d.Name, p)
				}
			}
		}
		if !goneNow { // all reads of a whole device are done
			count = at
			if ports != 2 {
				t.Errorf("%d ports, want 2", ports)
			}
			break
		}
		if ports != 1 {
			t.Errorf("gone at read %d: %d ports are left, want the other device's", at+1, ports)
		}
	}
	if count < 10 {
		t.Errorf("a device has only %d reads", count)
	}
}

// Errors other than "not there" come to the caller.
func TestListFails(t *testing.T) {
	root := t.TempDir()
	writeFile(t, filepath.Join(root, "class/infiniband"), "a file")
	writeFile(t, filepath.Join(root, "class/infiniband_mad"), "a file")
	s := sysfs{root: root}
	if list, err := s.devices(); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("devices: %v, %v", list, err)
	}
	if name, err := s.umadName("mlx5_0", 1); err == nil || errors.Is(err, transport.ErrNoPort) {
		t.Errorf("umad device: %q, %v", name, err)
	}
	if err := s.checkABI(); err == nil || errors.Is(err, ErrNoModule) {
		t.Errorf("ABI: %v", err)
	}
}

// Whatever a kernel prints for the attributes of a port, reading it ends, and what
// comes out is bounded and in order.
func FuzzPort(f *testing.F) {
	f.Add("4: ACTIVE\n", "0x5\n", "fe80:0000:0000:0000:0002:c903:00a1:b2c3\n", "0xffff\n", "100 Gb/sec (4X EDR)\n", uint16(3))
	f.Add("", "", "", "", "", uint16(0))
	f.Add("1: DOWN", "65536", "::", "0x8000", "x", uint16(65535))
	f.Fuzz(func(t *testing.T, state, lid, gid, pkey, rate string, index uint16) {
		text := map[string]string{
			"state": state, "lid": lid, "rate": rate, "link_layer": "InfiniBand", "lid_mask_count": lid, "sm_lid": lid,
			fmt.Sprint(index): "", // filled in below by table
		}
		root := t.TempDir()
		dir := filepath.Join(root, "class/infiniband/d/ports/1")
		for _, table := range []string{"gids", "pkeys"} {
			writeFile(t, filepath.Join(dir, table, fmt.Sprint(index)), "")
		}
		s := sysfs{root: root, read: func(path string) ([]byte, error) {
			switch filepath.Base(filepath.Dir(path)) {
			case "gids":
				return []byte(gid), nil
			case "pkeys":
				return []byte(pkey), nil
			}
			if v, ok := text[filepath.Base(path)]; ok {
				return []byte(v), nil
			}
			return nil, fs.ErrNotExist
		}}
		p, err := s.port("d", 1)
		if err != nil {
			return
		}
		if n := len(p.GIDs); n != 0 && (n != int(index)+1 || p.GIDs[index].GUID() == 0) {
			t.Errorf("GID table %d long, the only entry is %d", n, index)
		}
		if n := len(p.PKeys); n != 0 && (n != int(index)+1 || !p.PKeys[index].IsValid()) {
			t.Errorf("P_Key table %d long, the only entry is %d", n, index)
		}
		if int(p.SAPKeyIndex()) > int(index) {
			t.Errorf("SA's P_Key at index %d", p.SAPKeyIndex())
		}
	})
}
