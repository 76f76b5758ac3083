// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package umad

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"acmd/mad/madtest"
	"acmd/mad/transport"

	"golang.org/x/sys/unix"
)

// The ioctls' arguments on a little-endian machine, as they were seen to work
// (soft RoCE is driver 14).
func TestVerbsRequestBytes(t *testing.T) {
	littleEndian(t)
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"context, no driver data": {verbsRequest(objectDevice, methodGetContext, 14),
			"1800 0000 0300 0000 0000000000000000 0e000000 00000000"},
		"event descriptor": {verbsRequest(objectAsyncEvent, methodAsyncEventAlloc, 14, verbsAttr{id: attrAsyncEventFD, flags: attrMandatory}),
			"2800 1000 0000 0100 0000000000000000 0e000000 00000000  0000 0000 0100 0000 0000000000000000"},
		"context with driver data": {verbsRequest(objectDevice, methodGetContext, driverMLX5,
			verbsAttr{id: attrDriverIn, size: 32, data: 0x1122334455667788}, verbsAttr{id: attrDriverOut, size: 128, data: 0x99}),
			"3800 0000 0300 0200 0000000000000000 01000000 00000000  0010 2000 0000 0000 8877665544332211  0110 8000 0000 0000 9900000000000000"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(c.got, want) {
			t.Errorf("%s:\ngot  %x\nwant %x", name, c.got, want)
		}
	}
}

// What mlx5 and mlx4 want, from their uapi headers; not tried on hardware.
func TestDriverRequests(t *testing.T) {
	if in, out := driverRequest(driverMLX5); len(in) != 32 || !bytes.Equal(in[4:], make([]byte, 28)) || !bytes.Equal(in[:4], nldevNumber(2)) || out == 0 {
		t.Errorf("mlx5: %x, %d bytes back", in, out)
	}
	if in, out := driverRequest(driverMLX4); in != nil || out < 16 {
		t.Errorf("mlx4: %x, %d bytes back", in, out)
	}
	if in, out := driverRequest(14); in != nil || out != 0 {
		t.Errorf("another driver: %x, %d bytes back", in, out)
	}
}

// asyncEvent encodes an event as the kernel writes it.
func asyncEvent(element uint64, typ uint32) []byte {
	b := binary.NativeEndian.AppendUint64(nil, element)
	return append(append(b, nldevNumber(typ)...), 0, 0, 0, 0)
}

func TestAsyncEvents(t *testing.T) {
	for typ := range uint32(300) {
		for _, element := range []uint64{0, 1, 2, 255, 256, 1 << 40} {
			ev, ok := parseAsyncEvent("x", asyncEvent(element, typ))
			port := typ >= 9 && typ <= 13 || typ == 17 || typ == 18
			want := typ == 8 || port && element > 0 && element < 256
			if ok != want || ok && (ev.Type != transport.EventType(typ) || ev.Device != "x" || port && uint64(ev.Port) != element || !port && ev.Port != 0) {
				t.Errorf("type %d element %d: %+v, %v", typ, element, ev, ok)
			}
		}
	}
}

// Uevents as a kernel sends them when a device is put in and pulled.
func TestParseUevent(t *testing.T) {
	text := func(lines ...string) []byte { return []byte(strings.Join(lines, "\x00") + "\x00") }
	for _, c := range []struct {
		in   []byte
		want uevent
		ok   bool
	}{
		{text("add@/devices/platform/softib.0/infiniband/sib1", "ACTION=add", "DEVPATH=/devices/platform/softib.0/infiniband/sib1", "SUBSYSTEM=infiniband", "NAME=sib1", "SEQNUM=812"),
			uevent{"add", "infiniband", "sib1"}, true},
		{text("remove@/devices/pci0000:00/0000:00:03.0/infiniband_verbs/uverbs0", "ACTION=remove", "SUBSYSTEM=infiniband_verbs", "MAJOR=231", "MINOR=192", "DEVNAME=infiniband/uverbs0"),
			uevent{"remove", "infiniband_verbs", "uverbs0"}, true},
		{text("add@/devices/x/infiniband_mad/umad3", "SUBSYSTEM=infiniband_mad"), uevent{"add", "infiniband_mad", "umad3"}, true},
		{text("add@/devices/x/net/ib0", "SUBSYSTEM=net"), uevent{}, false},
		{text("libudev", "SUBSYSTEM=infiniband"), uevent{}, false},
		{[]byte("add@/devices/x"), uevent{}, false},
		{text("add@/", "SUBSYSTEM=infiniband"), uevent{}, false},
		{nil, uevent{}, false},
	} {
		got, ok := parseUevent(c.in)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%q: %+v, %v", c.in, got, ok)
		}
	}
}

// The dump of devices and the answer about a uverbs device, laid out as the kernel
// does.
func TestNLDev(t *testing.T) {
	littleEndian(t)
	if got, want := hex.EncodeToString(nldevMessage(nldevGet, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, 1)), "10000000"+"0114"+"0103"+"01000000"+"00000000"; got != want {
		t.Errorf("request %s, want %s", got, want)
	}
	dev := func(seq uint32, name string, index uint32) []byte {
		return nldevMessage(nldevGet, unix.NLM_F_MULTI, seq, nldevAttr(nldevAttrIndex, nldevNumber(index)), nldevAttr(nldevAttrName, []byte(name+"\x00")),
			nldevAttr(6, make([]byte, 8)))
	}
	dump := append(append(dev(1, "sib0", 0), dev(9, "other", 5)...), dev(1, "mlx5_10", 7)...)
	list, done, err := parseNLDev(dump, 1)
	if err != nil || done || len(list) != 2 || list[0].name != "sib0" || list[1].name != "mlx5_10" || list[1].index != 7 || list[1].hasDriver {
		t.Errorf("%+v %v %v", list, done, err)
	}
	if _, done, err = parseNLDev(nldevMessage(unix.NLMSG_DONE, 0, 1, nldevNumber(0)), 1); !done || err != nil {
		t.Errorf("end of a dump: %v %v", done, err)
	}
	refused := nldevMessage(unix.NLMSG_ERROR, 0, 2, nldevNumber(uint32(0xffffffff-uint32(unix.EINVAL)+1)))
	if _, done, err = parseNLDev(refused, 2); !done || err != unix.EINVAL {
		t.Errorf("a refusal: %v %v", done, err)
	}
	chardev := nldevMessage(nldevGetChardev, 0, 2, nldevAttr(nldevAttrDriverID, nldevNumber(driverMLX5)))
	if list, _, err = parseNLDev(chardev, 2); err != nil || len(list) != 1 || !list[0].hasDriver || list[0].driver != driverMLX5 {
		t.Errorf("uverbs: %+v %v", list, err)
	}
	if _, done, err = parseNLDev([]byte{4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1); !done || err == nil {
		t.Error("a message shorter than its header")
	}
}

func FuzzNLDev(f *testing.F) {
	f.Add(nldevMessage(nldevGet, 0, 1, nldevAttr(nldevAttrName, []byte("x\x00")), nldevAttr(nldevAttrIndex, nldevNumber(3))))
	f.Add([]byte{16, 0, 0, 0, 2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, _, _ := parseNLDev(b, 1)
		if len(list) > len(b)/unix.NLMSG_HDRLEN {
			t.Errorf("%d devices in %d bytes", len(list), len(b))
		}
	})
}

func FuzzUevent(f *testing.F) {
	f.Add([]byte("add@/devices/x/infiniband/sib1\x00SUBSYSTEM=infiniband\x00"))
	f.Add([]byte("@\x00SUBSYSTEM=\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if u, ok := parseUevent(b); ok && (u.name == "" || !strings.HasPrefix(u.subsystem, "infiniband")) {
			t.Errorf("%q: %+v", b, u)
		}
	})
}

// A host without uverbs, or where it cannot be opened, has its devices polled, and
// says so; closing gives everything back.
func TestEventsWithoutUverbs(t *testing.T) {
	madtest.CheckLeaks(t)
	root, _ := tree(t, "testdata/two-port-mlx5.txtar")
	f, err := New(Config{SysRoot: filepath.Join(root, "sys"), DevRoot: filepath.Join(root, "dev")})
	if err != nil {
		t.Fatal(err)
	}
	if list := f.EventSources(); list != nil {
		t.Errorf("sources before anybody watches: %v", list)
	}
	events := f.Events()
	if f.Events() != events {
		t.Error("two channels")
	}
	for end := time.Now().Add(30 * time.Second); len(f.EventSources()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no sources")
		}
	}
	for _, s := range f.EventSources() {
		if s.Source != transport.SourcePoll || s.Reason == "" || s.Events != 0 {
			t.Errorf("%+v", s)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for range events { // ends only if the channel was closed
	}
	if _, open := <-f.Events(); open {
		t.Error("events after the end")
	}
}

// Events are passed on until the descriptor ends; what nobody takes is dropped and
// counted; a fatal one ends the source, which is then named as polled.
func TestReadAsync(t *testing.T) {
	r, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer wr.Close()
	w := &watcher{out: make(chan transport.Event, 4), scan: make(chan struct{}, 1), devices: map[string]*watched{}}
	w.add("sib1", &async{"sib1", -1, r}, nil)
	var b []byte
	for range 6 {
		b = append(b, asyncEvent(1, 11)...)
	}
	b = append(b, asyncEvent(7, 3)...) // about a queue pair
	if _, err := wr.Write(append(b, asyncEvent(0, 8)...)); err != nil {
		t.Fatal(err)
	}
	w.done.Wait()
	s := w.sources()
	if len(s) != 1 || s[0].Source != transport.SourcePoll || s[0].Events != 7 || s[0].Lost != 3 || s[0].Reason != errDeviceFatal.Error() {
		t.Errorf("%+v", s)
	}
	if ev := <-w.out; ev != (transport.Event{Type: transport.EventLIDChange, Device: "sib1", Port: 1}) || len(w.out) != 3 {
		t.Errorf("%+v and %d more", ev, len(w.out))
	}
}

// A uevent that is handled while everything ends closes nothing again: the number of
// the context is somebody else's by then.
func TestDropAfterClose(t *testing.T) {
	madtest.CheckLeaks(t)
	r, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer wr.Close()
	context, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{out: make(chan transport.Event, 4), scan: make(chan struct{}, 1), stop: make(chan struct{}), devices: map[string]*watched{}}
	w.add("sib1", &async{"sib1", context, r}, nil)
	w.close()
	if err := unix.Dup3(int(wr.Fd()), context, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(context)
	w.drop("sib1")
	if _, err := unix.FcntlInt(uintptr(context), unix.F_GETFD, 0); err != nil {
		t.Errorf("somebody else's descriptor: %v", err)
	}
}
