// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

var errGenUsage = errors.New("usage: acmload gen net | preload | dests")

func cmdGen(args []string) error {
	if len(args) == 0 {
		return errGenUsage
	}
	switch args[0] {
	case "net":
		fs := flag.NewFlagSet("gen net", flag.ExitOnError)
		n := fs.Int("n", 600, "HCAs besides the SM's")
		down := fs.Int("down", 24, "HCAs per leaf")
		up := fs.Int("up", 4, "spines")
		fs.Parse(args[1:])
		if *n < 0 || *down < 1 || *up < 1 || *down+*up > 254 {
			return errors.New("gen net: a leaf has 254 ports at most")
		}
		return genNet(os.Stdout, *n, *down, *up)
	case "preload":
		return genPreload(args[1:])
	case "dests":
		return genDests(args[1:])
	}
	return errGenUsage
}

// genNet writes a two-level netlist of ibsim: h1 to hN and sm-host.
func genNet(out io.Writer, n, down, up int) error {
	w := bufio.NewWriter(out)
	names := []string{"sm-host"}
	for i := range n {
		names = append(names, fmt.Sprintf("h%d", i+1))
	}
	leaves := (len(names) + down - 1) / down
	fmt.Fprintln(w, "# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause")
	for l := range leaves {
		fmt.Fprintf(w, "Switch\t%d\t\"leaf%d\"\n", down+up, l+1)
		for p := range down {
			if i := l*down + p; i < len(names) {
				fmt.Fprintf(w, "[%d]\t%q[1]\n", p+1, names[i])
			}
		}
		for s := range up {
			fmt.Fprintf(w, "[%d]\t\"spine%d\"[%d]\n", down+s+1, s+1, l+1)
		}
		fmt.Fprintln(w)
	}
	for s := range up {
		fmt.Fprintf(w, "Switch\t%d\t\"spine%d\"\n", leaves, s+1)
		for l := range leaves {
			fmt.Fprintf(w, "[%d]\t\"leaf%d\"[%d]\n", l+1, l+1, down+s+1)
		}
		fmt.Fprintln(w)
	}
	for i, name := range names {
		fmt.Fprintf(w, "Hca\t1\t%q\n[1]\t\"leaf%d\"[%d]\n\n", name, i/down+1, i%down+1)
	}
	return w.Flush()
}

// linkLocal is the GID of a port in the default subnet.
func linkLocal(guid uint64) netip.Addr {
	a := [16]byte{0xfe, 0x80}
	binary.BigEndian.PutUint64(a[8:], guid)
	return netip.AddrFrom16(a)
}

// outputs is a set of files that are written together.
type outputs struct {
	dir   string
	files []*os.File
	bufs  []*bufio.Writer
	err   error
}

func (o *outputs) create(name string) *bufio.Writer {
	f, err := os.Create(filepath.Join(o.dir, name))
	o.err = errors.Join(o.err, err)
	w := bufio.NewWriter(f)
	o.files, o.bufs = append(o.files, f), append(o.bufs, w)
	return w
}

func (o *outputs) close() error {
	for i, f := range o.files {
		if f != nil {
			o.err = errors.Join(o.err, o.bufs[i].Flush(), f.Close())
		}
	}
	return o.err
}

// genPreload writes a synthetic "opensm full v1" path dump, an acm_hosts file
// with one IP address per LID, and the lists of destinations that match them.
func genPreload(args []string) error {
	fs := flag.NewFlagSet("gen preload", flag.ExitOnError)
	n := fs.Int("n", 10000, "destinations")
	guid := fs.String("guid", "0x100001", "port GUID of the node that will load it")
	lid := fs.Int("lid", 3, "LID of that node")
	first := fs.Int("first", 100, "first LID of the destinations")
	dir := fs.String("o", ".", "output directory")
	fs.Parse(args)
	if *n < 1 || *n > 250*256 || *first < 1 || *first+*n > 0xc000 {
		return errors.New("gen preload: destinations need unicast LIDs and 250 addresses of each of 256 networks")
	}
	o := outputs{dir: *dir}
	route, hosts := o.create("route.data"), o.create("hosts.data")
	ips, lids, gids := o.create("dests.ip"), o.create("dests.lid"), o.create("dests.gid")
	if o.err != nil {
		return o.close()
	}
	fmt.Fprintf(route, "Channel Adapter %s, base LID %d, LMC 0, port 1\n# LID  : SL : MTU : RATE\n", *guid, *lid)
	fmt.Fprintf(route, "0x%04X : 0 : 4 : 3\n", *lid)
	for i := range *n {
		fmt.Fprintf(route, "0x%04X : 0 : 4 : 3\n", *first+i)
	}
	for i := range *n {
		l := *first + i
		g := uint64(0x900000) + uint64(i)
		gid := linkLocal(g)
		ip := fmt.Sprintf("10.80.%d.%d", i/250, i%250+1)
		fmt.Fprintf(route, "\nChannel Adapter 0x%x, base LID %d, LMC 0, port 1\n", g, l)
		fmt.Fprintf(hosts, "%s %s\n", ip, gid)
		fmt.Fprintf(ips, "ip:%s %s %d\n", ip, gid, l)
		fmt.Fprintf(lids, "lid:%d %s %d\n", l, gid, l)
		fmt.Fprintf(gids, "gid:%s %s %d\n", gid, gid, l)
	}
	return o.close()
}

// genDests turns opensm's guid2lid file into a list of destinations. Switches
// (port GUIDs at or above -skip) are left out.
func genDests(args []string) error {
	fs := flag.NewFlagSet("gen dests", flag.ExitOnError)
	in := fs.String("guid2lid", "", "opensm's guid2lid file")
	skip := fs.Uint64("skip", 0x200000, "leave out port GUIDs from here on")
	kind := fs.String("kind", "lid", "lid or gid")
	except := fs.Int("except", 0, "leave out this LID")
	fs.Parse(args)
	f, err := os.Open(*in)
	if err != nil {
		return err
	}
	defer f.Close()
	return writeDests(os.Stdout, f, *kind, *skip, *except)
}

func writeDests(w io.Writer, in io.Reader, kind string, skip uint64, except int) error {
	if kind != "lid" && kind != "gid" {
		return fmt.Errorf("kind %q: want lid or gid", kind)
	}
	sc := bufio.NewScanner(in)
	for sc.Scan() {
		p := strings.Fields(sc.Text())
		if len(p) < 2 {
			continue
		}
		guid, err1 := strconv.ParseUint(p[0], 0, 64)
		lid, err2 := strconv.ParseUint(p[1], 0, 16)
		if err1 != nil || err2 != nil || guid >= skip || int(lid) == except {
			continue
		}
		gid := linkLocal(guid)
		val := strconv.FormatUint(lid, 10)
		if kind == "gid" {
			val = gid.String()
		}
		if _, err := fmt.Fprintf(w, "%s:%s %s %d\n", kind, val, gid, lid); err != nil {
			return err
		}
	}
	return sc.Err()
}
