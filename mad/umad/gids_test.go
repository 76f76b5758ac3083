// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"acmd/mad/transport"

	"github.com/google/go-cmp/cmp"
)

func TestGIDTable(t *testing.T) {
	root, want := tree(t, "testdata/gids/attributes.txtar")
	s := sysfs{root: filepath.Join(root, "sys")}
	var b strings.Builder
	for _, p := range []struct {
		device string
		port   uint8
	}{{"mlx5_0", 1}, {"mlx5_1", 1}, {"mlx5_1", 2}, {"mlx5_2", 1}} {
		list, err := s.gidTable(p.device, p.port)
		fmt.Fprintf(&b, "%s %d", p.device, p.port)
		if err != nil {
			fmt.Fprintln(&b, " error")
			if !errors.Is(err, transport.ErrNoPort) {
				t.Error(err)
			}
			continue
		}
		fmt.Fprintln(&b)
		for _, e := range list {
			fmt.Fprintf(&b, "  %d %v %v %q\n", e.Index, e.GID, e.Type, e.Interface)
		}
	}
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("tables (-want +got):\n%s", d)
	}
	for _, device := range []string{"", ".", "..", "../infiniband/mlx5_0", "mlx5_0\x00"} {
		if _, err := s.gidTable(device, 1); !errors.Is(err, transport.ErrNoPort) {
			t.Errorf("%q: %v", device, err)
		}
	}
}
