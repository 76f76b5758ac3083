// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package preload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"acmd/resolver/config"
)

// eachLine calls f for every line, without its end of line; b is valid during
// the call. Lines over config.MaxLine bytes are refused, and what has no end of line in
// config.MaxFile bytes is no text file: a device may go on like that for ever.
func eachLine(r io.Reader, log *config.Problems, f func(n int, b []byte)) error {
	br := bufio.NewReaderSize(r, config.MaxLine)
	for n := 1; ; n++ {
		b, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			log.Warn(n, "line longer than %d bytes, ignored", config.MaxLine)
			for passed := len(b); errors.Is(err, bufio.ErrBufferFull); passed += len(b) {
				if passed > config.MaxFile {
					return fmt.Errorf("line %d is longer than %d bytes", n, config.MaxFile)
				}
				b, err = br.ReadSlice('\n')
			}
			b = nil
		}
		if err != nil && err != io.EOF {
			return err
		}
		if n == 1 {
			b = config.TrimMark(b)
		}
		if b = bytes.TrimRight(b, " \t\r\n"); len(b) > 0 {
			f(n, b)
		}
		if err == io.EOF {
			return nil
		}
	}
}

// word cuts the first word off b; both are empty at the end.
func word(b []byte) (w, rest []byte) {
	i := 0
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	j := i
	for j < len(b) && !isSpace(b[j]) {
		j++
	}
	return b[i:j], b[j:]
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// number reads an unsigned number that takes up all of b: decimal, or hex
// behind 0x. max bounds it.
func number(b []byte, max uint64) (n uint64, ok bool) {
	base := uint64(10)
	if len(b) > 2 && b[0] == '0' && b[1]|0x20 == 'x' {
		b, base = b[2:], 16
	}
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	for _, c := range b {
		var d uint64
		switch {
		case c >= '0' && c <= '9':
			d = uint64(c - '0')
		case base == 16 && c|0x20 >= 'a' && c|0x20 <= 'f':
			d = uint64(c|0x20-'a') + 10
		default:
			return 0, false
		}
		if n > (max-d)/base { // n*base+d > max
			return 0, false
		}
		n = n*base + d
	}
	return n, true
}
