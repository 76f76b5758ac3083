// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package service

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"acmd/resolver/acmsock"
	"acmd/resolver/config"
	"acmd/resolver/preload"
)

// CheckConfig prints every effective setting with its origin and returns an
// error if anything in the files or on the command line is not as it should be:
// all of it, one line each, those about a file begin with file and line. Only a
// file that the command line does not name may be missing.
func CheckConfig(o Options, w io.Writer) error {
	var errs []error
	for _, f := range []struct{ flag, path string }{{"-O", o.OptionsFile}, {"-A", o.AddressFile}} {
		if _, err := os.Stat(f.path); f.path != "" && errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s %s: %w", f.flag, f.path, fs.ErrNotExist))
		}
	}
	o.setDefaults()
	if _, err := transportOf(strings.TrimSuffix(o.Fabric, queuePairs)); err != nil {
		errs = append(errs, err)
	}
	passed, err := acmsock.Passed(o.Getenv, acmsock.FirstPassed)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	settings, problems, err := config.Load(o.OptionsFile, o.env(len(passed.Streams) > 0))
	if settings == nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, config.Errors(problems, true), o.override(settings))
	if err := settings.Effective(w); err != nil {
		return err
	}
	_, problems, err = config.LoadAddrs(o.AddressFile, settings.SupportIPsInAddr)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	errs = append(errs, config.Errors(problems, true), err, checkPreload(settings))
	return errors.Join(errs...)
}

// checkPreload reads the files of addr_preload and route_preload. One that cannot
// be read is a fault of the line that names it, or that asks for the default one.
func checkPreload(s *config.Settings) error {
	hosts, dump := preloadFiles(s)
	var errs []error
	for _, f := range []struct {
		file, asked string
		src         *preload.Source
	}{
		{"addr_data_file", "addr_preload", preload.New(hosts, "")},
		{"route_data_file", "route_preload", preload.New("", dump)},
	} {
		problems, err := f.src.Load(nil)
		if err != nil {
			at := s.Origin(f.file)
			if at == (config.Origin{}) {
				at = s.Origin(f.asked)
			}
			err = fmt.Errorf("%v: %w", at, err)
		}
		errs = append(errs, config.Errors(problems, true), err)
	}
	return errors.Join(errs...)
}
