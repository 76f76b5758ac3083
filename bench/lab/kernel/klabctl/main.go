// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

// klabctl does the two netlink requests that busybox's ip cannot: make a veth
// pair with chosen names, and add a soft RDMA link (rxe) to a network device.
// Standard library only.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

const (
	netlinkRDMA = 20 // NETLINK_RDMA

	rdmaNLDev     = 5 // RDMA_NL_NLDEV
	nldevNewlink  = 3 // RDMA_NLDEV_CMD_NEWLINK
	nldevDellink  = 4 // RDMA_NLDEV_CMD_DELLINK
	attrDevIndex  = 1 // RDMA_NLDEV_ATTR_DEV_INDEX
	attrDevName   = 2 // RDMA_NLDEV_ATTR_DEV_NAME
	attrLinkType  = 65
	attrNdevName  = 51
	vethInfoPeer  = 1
	iflaInfoKind  = 1
	iflaInfoData  = 2
	iflaLinkInfo  = 18
	iflaAddress   = 1
	iflaIfname    = 3
	sizeofNlmsg   = 16
	sizeofIfinfo  = 16
	nlaAlign      = 4
	recvBufLength = 8192
)

func attr(typ uint16, data []byte) []byte {
	n := 4 + len(data)
	b := make([]byte, (n+nlaAlign-1)&^(nlaAlign-1))
	binary.NativeEndian.PutUint16(b, uint16(n))
	binary.NativeEndian.PutUint16(b[2:], typ)
	copy(b[4:], data)
	return b
}

func str(s string) []byte { return append([]byte(s), 0) }

func cat(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// request sends one message with NLM_F_ACK and returns the kernel's answer.
func request(proto int, typ uint16, flags uint16, body []byte) error {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	msg := make([]byte, sizeofNlmsg, sizeofNlmsg+len(body))
	binary.NativeEndian.PutUint32(msg, uint32(sizeofNlmsg+len(body)))
	binary.NativeEndian.PutUint16(msg[4:], typ)
	binary.NativeEndian.PutUint16(msg[6:], syscall.NLM_F_REQUEST|syscall.NLM_F_ACK|flags)
	binary.NativeEndian.PutUint32(msg[8:], 1)
	msg = append(msg, body...)
	if err := syscall.Sendto(fd, msg, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, recvBufLength)
	for {
		n, _, err := syscall.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range msgs {
			if m.Header.Type != syscall.NLMSG_ERROR {
				continue
			}
			if e := int32(binary.NativeEndian.Uint32(m.Data)); e != 0 {
				return syscall.Errno(-e)
			}
			return nil
		}
	}
}

func veth(a, amac, b, bmac string) error {
	am, err := net.ParseMAC(amac)
	if err != nil {
		return err
	}
	bm, err := net.ParseMAC(bmac)
	if err != nil {
		return err
	}
	ifinfo := make([]byte, sizeofIfinfo)
	peer := attr(vethInfoPeer, cat(ifinfo, attr(iflaIfname, str(b)), attr(iflaAddress, bm)))
	info := attr(iflaLinkInfo, cat(attr(iflaInfoKind, str("veth")), attr(iflaInfoData, peer)))
	body := cat(ifinfo, attr(iflaIfname, str(a)), attr(iflaAddress, am), info)
	return request(syscall.NETLINK_ROUTE, syscall.RTM_NEWLINK, syscall.NLM_F_CREATE|syscall.NLM_F_EXCL, body)
}

func rdmaLinkAdd(name, typ, ndev string) error {
	body := cat(attr(attrDevName, str(name)), attr(attrLinkType, str(typ)), attr(attrNdevName, str(ndev)))
	return request(netlinkRDMA, rdmaNLDev<<10|nldevNewlink, 0, body)
}

func rdmaLinkDel(index uint32) error {
	return request(netlinkRDMA, rdmaNLDev<<10|nldevDellink, 0, attr(attrDevIndex, binary.NativeEndian.AppendUint32(nil, index)))
}

func run(args []string) error {
	if len(args) == 5 && args[0] == "veth" {
		return veth(args[1], args[2], args[3], args[4])
	}
	if len(args) == 4 && args[0] == "rdma-link-add" {
		return rdmaLinkAdd(args[1], args[2], args[3])
	}
	if len(args) == 2 && args[0] == "rdma-link-del" {
		var i uint32
		if _, err := fmt.Sscan(args[1], &i); err != nil {
			return err
		}
		return rdmaLinkDel(i)
	}
	return errors.New("usage: klabctl veth A AMAC B BMAC | rdma-link-add NAME TYPE NETDEV | rdma-link-del INDEX")
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "klabctl:", err)
		os.Exit(1)
	}
}
