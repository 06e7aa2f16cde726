package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/internal/principal"
	"github.com/toolfleet/toolfleet/internal/telemetry"
)

type httpCmd struct {
	daemon.Server
	daemon.Listens
	Listen string         `setting:"api.listen" placeholder:"ADDR"`
	Tokens string         `setting:"api.tokens" placeholder:"FILE"`
	Open   command.Switch `setting:"api.open"`
}

// Help returns the text that --help shows below the command's usage.
func (httpCmd) Help() string {
	return `Any number of HTTP servers answer for one fleet: each is a client of its endpoints on NATS and holds nothing. Without --nats
it looks for a server at nats://127.0.0.1:4222. On 127.0.0.1 and on a unix socket everybody on this machine may ask. Other
addresses need tokens: a file of hashes (toolfleet http-token makes tokens), or the issuer of JSON Web Tokens in the settings
api.jwt_issuer, api.jwt_audience and api.jwt_keys. It speaks plain HTTP; put TLS in front of it.`
}

func (httpCmd) Run(a *command.App) error {
	cfg, log, err := a.Load()
	if err != nil {
		return err
	}
	reg := telemetry.Registry(daemon.ThisBuild().Release())
	shown, err := openInstruments(a, httpService, log, reg)
	if err != nil {
		return err
	}
	defer shown.flush()
	api, err := listenForAPI(a.Ctx, cfg, log)
	if err != nil {
		return err
	}
	defer api.close()
	if api.signer, err = cfg.Signer(); err != nil {
		return command.Usage(err)
	}
	conn, err := daemon.Connect(a.Ctx, cfg, "toolfleet http", log)
	if err != nil {
		return err
	}
	defer conn.Close()
	reg.MustRegister(conn.Collectors()...)
	ready := func(context.Context) error {
		if !conn.Connected() {
			return errors.New("not connected to NATS")
		}
		return nil
	}
	serve, err := api.serverOver(conn, shown, telemetry.Handler(reg, ready))
	if err != nil {
		return err
	}
	log.Info("the HTTP API is ready", "address", api.addr())
	return daemon.Serve(a.Ctx, cfg.HTTP, reg, ready, log, serve)
}

type httpTokenCmd struct {
	daemon.General
	User   string `required:"" placeholder:"NAME" help:"Who the token is for."`
	Tenant string `setting:"tenant" placeholder:"TENANT"`
}

// Help returns the text that --help shows below the command's usage.
func (httpTokenCmd) Help() string {
	return `The token is on stdout; its entry for the tokens file is on stderr. The file has only the hash, so who reads it cannot use it.
To take a token back, remove its entry: servers notice within a second, and end its open requests within 10.`
}

func (c httpTokenCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	token, line := access.NewToken(access.Principal{Tenant: cfg.Tenant, User: c.User})
	a.Say("Add this entry to the tokens file, below the line \"tokens:\"\n\n%s\n", line)
	_, err = fmt.Fprintln(a.Stdout, token)
	return err
}

// apiListener is the listener of the HTTP API, with the control of access to it.
type apiListener struct {
	net.Listener
	cfg    *config.Config
	access access.Control
	signer *principal.Signer // signs which user asks; nil: nothing is signed
}

// unixPrefix begins the address of a unix socket.
const unixPrefix = "unix:"

// listenForAPI listens where the settings say. It refuses to listen for other machines without
// tokens.
func listenForAPI(ctx context.Context, cfg *config.Config, log *slog.Logger) (*apiListener, error) {
	network, address := "tcp", cfg.API.Listen
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		network, address = "unix", path
		removeSocket(path)
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listen for the HTTP API: %w; api.listen (%s) names another address", err, config.Env("api.listen"))
	}
	api := &apiListener{Listener: l, cfg: cfg}
	if api.access, err = accessTo(ctx, cfg, l.Addr(), log); err != nil {
		_ = l.Close()
		return nil, err
	}
	return api, nil
}

// removeSocket removes the file of a unix socket on which no server listens, such as a killed
// server leaves behind.
func removeSocket(path string) {
	if info, err := os.Stat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		return
	}
	if c, err := net.Dial("unix", path); err == nil { // a server listens there
		_ = c.Close()
		return
	}
	_ = os.Remove(path) // listening fails if it is still there
}

// accessTo returns the control that decides who may use the API at an address.
func accessTo(ctx context.Context, cfg *config.Config, addr net.Addr, log *slog.Logger) (access.Control, error) {
	jwt := access.JWTConfig{
		Issuer: cfg.API.JWT.Issuer, Audience: cfg.API.JWT.Audience, Keys: cfg.API.JWT.Keys, TenantClaim: cfg.API.JWT.TenantClaim, Tenant: cfg.Tenant,
	}
	everybody := access.Principal{Tenant: cfg.Tenant}
	var with access.Bearer
	var err error
	if cfg.API.Tokens != "" {
		if with.Tokens, err = access.ReadTokens(string(cfg.API.Tokens), cfg.Tenant, log); err != nil {
			return nil, command.Usage(err)
		}
	}
	if jwt.Issuer != "" || jwt.Audience != "" || jwt.Keys != "" {
		if with.JWT, err = access.NewJWT(ctx, jwt); err != nil {
			return nil, command.Usage(err)
		}
	}
	switch {
	case with.Tokens != nil || with.JWT != nil:
		return with, nil
	case addr.Network() == "unix":
		return access.Anybody{As: everybody}, nil
	case access.Local(addr):
		return access.Here{As: everybody}, nil
	case cfg.API.Open:
		log.Warn("the HTTP API has no tokens and other machines reach it: whoever does can run every tool", "address", addr.String())
		return access.Anybody{As: everybody}, nil
	}
	return nil, command.Usagef("other machines reach %s, and there are no tokens: name a file of them with --tokens, listen on 127.0.0.1, or let everybody in with --open (setting api.open)", addr)
}

// serverOver returns the function that serves the API over a connection until its context ends.
func (l *apiListener) serverOver(conn *bus.Conn, shown instruments, health http.Handler) (func(context.Context) error, error) {
	s, err := httpapi.New(func(tenant string) *client.Client { return command.ClientOver(conn, tenant) }, httpapi.Config{
		Access: l.access, Signer: l.signer, Origins: l.cfg.API.Origins, Version: daemon.ThisBuild().Release(), Health: health, Logger: shown.log, Tracer: shown.tracer, Metrics: httpapi.NewMetrics(shown.metrics),
	})
	if err != nil {
		return nil, command.Usage(err)
	}
	return func(ctx context.Context) error { return s.Serve(ctx, l.Listener) }, nil
}

// addr returns where the API is served, as a client writes it.
func (l *apiListener) addr() string {
	if l.Addr().Network() == "unix" {
		return unixPrefix + l.Addr().String()
	}
	return "http://" + l.Addr().String()
}

// close closes the listener. It does nothing if the server has closed it already.
func (l *apiListener) close() { _ = l.Close() }
