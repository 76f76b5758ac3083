// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package ibsim

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"acmd/mad"
)

const (
	defaultPort  = "7070" // of the simulator in remote mode
	defaultBase  = "sim"
	maxBaseLen   = 80 // leaves room for ":ctl" and a number in 108 bytes
	maxNodeLen   = 31 // 32 bytes with the NUL
	defaultSlots = 256
)

// Config says which simulator to attach to and as whom. The zero value is a
// plain client of the local simulator on the first node of its topology.
type Config struct {
	// Base is the first part of the abstract socket names. Empty means
	// $IBSIM_SOCKNAME, else "sim", which is what the simulator does.
	Base string
	// Remote is "host" or "host:port" of a simulator in remote mode (IPv4, port
	// 7070 unless given). Empty means the local mode.
	Remote string
	// Node is the node to attach to: its identifier in the topology file, or its
	// node description. Empty means the first node.
	Node string
	// ISSM attaches as a client that receives the requests for QP0 and QP1, SA
	// Reports among them. One such client per node.
	ISSM bool
	// QP above 1 makes it the source of what the port sends; requests to that QP,
	// Reports of subscriptions that came from it among them, are received.
	QP mad.QPN
	// Slots is the size of a port's ring, 0 for 256. Poison is for tests.
	Slots  int
	Poison bool
	// Poll is how often the port's attributes are read to notice changes, 0 for
	// one second.
	Poll time.Duration

	control time.Duration // bounds a control round trip; 0 for controlTime
}

// ParseOptions reads "SOCKNAME,node=ID" with the further words remote=HOST[:PORT],
// issm and qp=N, in any order; the socket name comes first and may be empty.
func ParseOptions(s string) (Config, error) {
	base, rest, more := strings.Cut(s, ",")
	c := Config{Base: base}
	if strings.Contains(base, "=") {
		return Config{}, fmt.Errorf("ibsim: options %q: the socket name comes first, it may be empty", s)
	}
	for more {
		var word string
		word, rest, more = strings.Cut(rest, ",")
		key, value, hasValue := strings.Cut(word, "=")
		switch {
		case key == "node" && value != "":
			c.Node = value
		case key == "remote" && value != "":
			c.Remote = value
		case key == "issm" && !hasValue:
			c.ISSM = true
		case key == "qp" && value != "":
			n, err := strconv.ParseUint(value, 0, 24)
			if err != nil || n < 2 {
				return Config{}, fmt.Errorf("ibsim: option %q: want a number from 2 to 0xffffff", word)
			}
			c.QP = mad.QPN(n)
		default:
			return Config{}, fmt.Errorf("ibsim: option %q: want node=ID, remote=HOST[:PORT], issm or qp=N", word)
		}
	}
	return c, c.check()
}

func (c *Config) check() error {
	switch {
	case len(c.Base) > maxBaseLen || strings.ContainsRune(c.Base, 0):
		return fmt.Errorf("ibsim: socket name %q: at most %d bytes and no NUL", c.Base, maxBaseLen)
	case len(c.Node) > maxNodeLen || strings.ContainsRune(c.Node, 0):
		return fmt.Errorf("ibsim: node %q: at most %d bytes and no NUL", c.Node, maxNodeLen)
	case c.QP == 1 || c.QP > 0xffffff:
		return fmt.Errorf("ibsim: QP %#x: want 2 to 0xffffff, or 0 for QP1", uint32(c.QP))
	case c.Slots < 0 || c.Slots > 1<<16:
		return fmt.Errorf("ibsim: %d slots: want 1 to 65536", c.Slots)
	case c.Poll < 0:
		return errors.New("ibsim: negative poll interval")
	}
	return nil
}

// withDefaults fills what was left open.
func (c Config) withDefaults() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	c.Slots = cmp.Or(c.Slots, defaultSlots)
	c.Poll = cmp.Or(c.Poll, time.Second)
	c.control = cmp.Or(c.control, controlTime)
	if c.Remote == "" {
		c.Base = cmp.Or(c.Base, os.Getenv("IBSIM_SOCKNAME"), defaultBase)
		return c, c.check() // the environment is input, too
	}
	if _, _, err := net.SplitHostPort(c.Remote); err != nil {
		c.Remote = net.JoinHostPort(c.Remote, defaultPort)
	}
	return c, nil
}

// where names the simulator in errors.
func (c *Config) where() string {
	if c.Remote != "" {
		return "simulator at " + c.Remote
	}
	return fmt.Sprintf("simulator %q", c.Base)
}
