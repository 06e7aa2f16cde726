package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// Exit statuses.
const (
	done   = 0
	failed = 1
	misuse = 2
)

// app is the context, the streams and the settings that every command runs with.
type app struct {
	ctx            context.Context        // ends at the first signal
	hurry          func() <-chan struct{} // see daemon.Signals.Patience: closed at the second signal
	stdin          io.Reader
	stdout, stderr io.Writer
	command        string         // as it is typed: "tools export"
	given          config.Sources // the settings of the command line
	last           func()         // slow work after all output, such as flushing traces; nil: none
}

// take collects the command's name and its settings from the command line.
func (a *app) take(parsed *kong.Context) {
	for _, node := range parsed.Path {
		if node.Command != nil {
			a.command = strings.TrimSpace(a.command + " " + node.Command.Name)
		}
	}
	a.given = daemon.GivenFlags(parsed)
}

// usageError marks an error in the user's input: exit status 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// usage marks err as a mistake in the user's input (flags, settings, files): exit status 2.
func usage(err error) error { return usageError{err} }

// usagef returns a usage error with a formatted text.
func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// errSaid ends a command whose failure was printed already: end prints nothing for it.
var errSaid = errors.New("failed, as was said")

// end prints the error of a command, if any, and returns its exit status.
func (a *app) end(err error) int {
	if a.last != nil {
		defer a.last()
	}
	var u usageError
	switch {
	case err == nil:
		return done
	// EPIPE: the reader of our output is gone, which needs no message.
	case errors.Is(err, errSaid), errors.Is(err, syscall.EPIPE):
		return failed
	case errors.As(err, &u), daemon.IsUsage(err):
		a.say("toolfleet %s: %v", a.command, err)
		return misuse
	}
	a.say("toolfleet %s: %v", a.command, err)
	return failed
}

// say writes one line to stderr.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, format+"\n", args...)
}

// settings loads the settings in effect. Its errors are usage errors.
func (a *app) settings() (*config.Config, error) {
	cfg, err := config.Load(a.given)
	if err != nil {
		return nil, usage(err)
	}
	return cfg, nil
}

// logger returns a logger that writes to the given writer: stderr, or a writer in front of it.
// quiet is the level to use when log.level is not set; "" keeps the default.
func (a *app) logger(cfg *config.Config, to io.Writer, quiet string) (*slog.Logger, error) {
	level := cfg.Log.Level
	if !cfg.Given("log.level") && quiet != "" {
		level = quiet
	}
	log, err := telemetry.Logger(to, level, cfg.Log.Format, isTerminal(a.stderr))
	if err != nil {
		return nil, usage(err)
	}
	return log, nil
}

// load returns the settings and a logger on stderr for a command that runs until a signal stops it.
func (a *app) load() (*config.Config, *slog.Logger, error) {
	cfg, err := a.settings()
	if err != nil {
		return nil, nil, err
	}
	log, err := a.logger(cfg, a.stderr, "")
	if err == nil && cfg.File() != "" {
		log.Info("settings read", "file", cfg.File())
	}
	return cfg, log, err
}

// print writes v to stdout as JSON.
func (a *app) print(v any) error {
	body, err := rawjson.Marshal(v)
	if err != nil {
		return err
	}
	return a.printRaw(body)
}

// printRaw writes a JSON value to stdout, on a line of its own.
func (a *app) printRaw(body json.RawMessage) error {
	_, err := a.stdout.Write(append(body, '\n'))
	return err
}

// table writes rows in columns to stdout, the first row being the header.
func (a *app) table(rows [][]string) error {
	return writeTable(a.stdout, rows)
}
