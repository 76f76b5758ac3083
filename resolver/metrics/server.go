// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	maxConnections = 32 // one more is closed as it comes, and counted
	maxScrapes     = 4  // at a time; one more is answered 503
	closeTime      = 2 * time.Second
)

// Server is the door. It serves GET /metrics and nothing else: no profiles, no
// state, nothing that changes anything.
type Server struct {
	ln   *limited
	http http.Server
	done chan struct{}
	err  error
}

// Listen opens addr, HOST:PORT or the absolute path of a unix socket, and serves
// until Close. A socket that nobody listens on any more is replaced; a file of
// another kind, or a socket with somebody behind it, is an error. Everybody on the
// host may connect to the unix socket, as to the port.
func Listen(addr string, source Source, log *slog.Logger) (*Server, error) {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
		if err := vacate(addr); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	ln, err := net.Listen(network, addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if network == "unix" {
		if err := os.Chmod(addr, 0o666); err != nil {
			return nil, errors.Join(fmt.Errorf("metrics: %w", err), ln.Close())
		}
	}
	s := &Server{ln: limit(ln), done: make(chan struct{})}
	errorLog := slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.handler(source, errorLog))
	mux.HandleFunc("GET /{$}", index)
	s.http = http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       5 * time.Minute, // longer than the pause between two scrapes
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          errorLog,
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
			s.err = err
			log.Error("metrics are not served any more", "err", err)
		}
	}()
	return s, nil
}

// handler serves the source's figures, those of the process, and the door's own.
func (s *Server) handler(source Source, errorLog promhttp.Logger) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		NewCollector(source),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{Namespace: namespace}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Name: "metrics_connections_rejected_total",
			Help: "Connections to this page closed as soon as they came, because too many were open.",
		}, func() float64 { return float64(s.ln.rejected.Load()) }),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog:            errorLog,
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
		EnableOpenMetrics:   true,
	})
}

func index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, "<!doctype html><title>acmd</title><a href=\"/metrics\">Metrics</a> of the InfiniBand path resolver acmd\n")
}

// vacate removes a socket that a dead process left at path.
func vacate(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is in the way, it is no socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		return errors.Join(fmt.Errorf("%s is served by another process", path), c.Close())
	case errors.Is(err, syscall.EAGAIN): // it listens, and its backlog is full
		return fmt.Errorf("%s is served by another process", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return os.Remove(path)
}

// Addr is where the page is. For port 0 it has the port that the kernel chose.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Close stops serving; a scrape under way has a moment to end. It removes a unix
// socket.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close() // whoever still reads has had its time
	}
	<-s.done
	return errors.Join(err, s.err)
}
