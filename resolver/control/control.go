// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// SocketName is the name of the control socket inside the run directory.
const SocketName = "acmd.ctl"

// maxBody bounds what a caller may send.
const maxBody = 64 << 10

// FlushRequest names what to drop; exactly one field is set.
type FlushRequest struct {
	GID  string `json:"gid,omitempty"`  // IPv6 text form
	LID  uint16 `json:"lid,omitempty"`  // unicast
	Dest string `json:"dest,omitempty"` // name, IPv4 or IPv6 address
	Port string `json:"port,omitempty"` // "mlx5_0/1"
	All  bool   `json:"all,omitempty"`
}

// validate reports a request that names nothing or more than one thing.
func (r *FlushRequest) validate() error {
	n := 0
	for _, set := range []bool{r.GID != "", r.LID != 0, r.Dest != "", r.Port != "", r.All} {
		if set {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("flush wants exactly one of gid, lid, dest, port, all; got %d", n)
	}
	return nil
}

// FlushReply tells how many cache entries went.
type FlushReply struct {
	Dropped int `json:"dropped"`
}

// FastPathRequest switches the answers in the kernel on or off.
type FastPathRequest struct {
	On bool `json:"on"`
}

// Setting is one effective setting and where it came from: "default", "flag" or
// file:line.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

// ConfigReply lists every setting.
type ConfigReply struct {
	Settings []Setting `json:"settings"`
}

// ReloadReply has the warnings of the files that were read again.
type ReloadReply struct {
	Warnings []string `json:"warnings"`
}

// Backend does what the verbs ask for. All methods are safe for concurrent use.
type Backend interface {
	// Flush returns once no request that starts afterwards can be answered with
	// what was dropped.
	Flush(ctx context.Context, r FlushRequest) (dropped int, err error)
	Config() []Setting
	// State returns a value that encodes to a JSON object.
	State() any
	// Reload reads the configuration again. An error means nothing changed.
	Reload() (warnings []string, err error)
}

// Server serves one control socket.
type Server struct {
	path string
	http http.Server
	mux  *http.ServeMux
	ln   net.Listener
	done chan struct{}
	err  error
}

// Listen opens RUNDIR/acmd.ctl, replacing a socket that a dead daemon left, and
// serves it until Close. Whoever holds the lock file owns the name, so nothing
// else can be listening there.
func Listen(runDir string, b Backend, log *slog.Logger) (*Server, error) {
	path := filepath.Join(runDir, SocketName)
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("control socket %s: a file that is no socket is in the way", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	ln, err := listenOwnerOnly(path)
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	s := &Server{path: path, mux: http.NewServeMux(), ln: ln, done: make(chan struct{})}
	s.http = http.Server{
		Handler:           s.mux,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	s.routes(b)
	go func() {
		defer close(s.done)
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.err = err
			log.Error("control socket ended", "err", err)
		}
	}()
	return s, nil
}

// listenOwnerOnly binds the socket so that it never exists with wider
// permissions than 0600, whatever the umask: it is bound in a directory that
// only we can enter, restricted, and moved into place.
func listenOwnerOnly(path string) (net.Listener, error) {
	// With ten digits behind the dot it is no longer than the clients' socket: where that
	// one fits (unix(7) has 107 bytes) this one does.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	if err = os.Chmod(tmp, 0o600); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

func (s *Server) routes(b Backend) {
	s.mux.HandleFunc("POST /v1/flush", func(w http.ResponseWriter, r *http.Request) {
		var req FlushRequest
		if err := ReadJSON(w, r, &req); err != nil {
			WriteError(w, http.StatusBadRequest, fmt.Errorf("flush: %w", err))
			return
		}
		if err := req.validate(); err != nil {
			WriteError(w, http.StatusBadRequest, err)
			return
		}
		n, err := b.Flush(r.Context(), req)
		if err != nil {
			WriteError(w, http.StatusBadRequest, err)
			return
		}
		WriteJSON(w, FlushReply{Dropped: n})
	})
	s.mux.HandleFunc("GET /v1/config", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, ConfigReply{Settings: b.Config()})
	})
	s.mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, b.State())
	})
	s.mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, _ *http.Request) {
		warnings, err := b.Reload()
		if err != nil {
			WriteError(w, http.StatusConflict, err)
			return
		}
		if warnings == nil {
			warnings = []string{}
		}
		WriteJSON(w, ReloadReply{Warnings: warnings})
	})
}

// Handle adds a verb, "METHOD /v1/name". It must be called before the daemon
// reports ready.
func (s *Server) Handle(pattern string, h http.HandlerFunc) { s.mux.HandleFunc(pattern, h) }

// Close stops serving and removes the socket.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	<-s.done
	if rerr := os.Remove(s.path); !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return errors.Join(err, s.err)
}

// ReadJSON reads the body of a request; fields that v does not have are refused.
func ReadJSON(w http.ResponseWriter, r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

// WriteJSON writes v as the body of a successful reply.
func WriteJSON(w http.ResponseWriter, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		WriteError(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // a caller that is gone is not our fault
}

// WriteError writes {"error":"..."}.
func WriteError(w http.ResponseWriter, code int, err error) {
	body, _ := json.Marshal(map[string]string{"error": err.Error()}) // a string always encodes
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

// ErrUnavailable is wrapped when no daemon listens on the control socket.
var ErrUnavailable = errors.New("no acmd listens there")

// Client asks a daemon. It is safe for concurrent use.
type Client struct {
	path string
	http http.Client
}

// NewClient makes a client of the socket in runDir. Nothing is opened yet.
func NewClient(runDir string) *Client {
	path := filepath.Join(runDir, SocketName)
	c := &Client{path: path}
	c.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}
	return c
}

// Do sends one request; in may be nil, out may be nil. Errors of the daemon come
// back as its own text.
func (c *Client) Do(ctx context.Context, method, verb string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://acmd/v1/"+verb, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("%s: %w", c.path, ErrUnavailable)
		}
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s: %w: it is for acmd's own user and root", c.path, fs.ErrPermission)
		}
		return fmt.Errorf("%s: %w", c.path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	if resp.StatusCode != http.StatusOK {
		var e struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(b, &e) != nil || e.Error == "" {
			return fmt.Errorf("%s: %s", c.path, resp.Status)
		}
		return errors.New(e.Error)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	return nil
}
