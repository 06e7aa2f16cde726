// Package command has what every toolfleet command needs: the streams, the settings of the command
// line, exit statuses, shared flags, and short reads of a fleet. It knows no command.
package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// Exit statuses: completed, failed, and a mistake in the user's input.
const (
	Done   = 0
	Failed = 1
	Misuse = 2
)

// App is the context, the streams and the settings that every command runs with.
type App struct {
	Ctx            context.Context        // ends at the first signal
	Hurry          func() <-chan struct{} // see daemon.Signals.Patience: closed at the second signal
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Command        string         // as it is typed: "tools export"
	given          config.Sources // the settings of the command line
	Last           func()         // slow work after all output, such as sending traces; nil: none
}

// SetCommandLine collects the command's name and its settings from the command line.
func (a *App) SetCommandLine(parsed *kong.Context) {
	for _, node := range parsed.Path {
		if node.Command != nil {
			a.Command = strings.TrimSpace(a.Command + " " + node.Command.Name)
		}
	}
	a.given = daemon.GivenFlags(parsed)
}

// usageError marks an error in the user's input: exit status 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// Usage marks err as a mistake in the user's input (flags, settings, files): exit status 2.
func Usage(err error) error { return usageError{err} }

// Usagef returns a usage error with a formatted text.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// ErrPrinted ends a command that has already printed its failure. Finish prints nothing for
// ErrPrinted.
var ErrPrinted = errors.New("failed, as was said")

// Finish prints the error of a command, if any, and returns its exit status.
func (a *App) Finish(err error) int {
	if a.Last != nil {
		defer a.Last()
	}
	var u usageError
	switch {
	case err == nil:
		return Done
	// EPIPE: stdout is closed, which needs no message.
	case errors.Is(err, ErrPrinted), errors.Is(err, syscall.EPIPE):
		return Failed
	case errors.As(err, &u), daemon.IsUsage(err):
		a.Say("toolfleet %s: %v", a.Command, err)
		return Misuse
	}
	a.Say("toolfleet %s: %v", a.Command, err)
	return Failed
}

// Say writes one line to stderr.
func (a *App) Say(format string, args ...any) {
	fmt.Fprintf(a.Stderr, format+"\n", args...)
}

// Connect connects to the server of the settings, and says on stderr at once when none answers. log
// may be nil.
func (a *App) Connect(cfg *config.Config, log *slog.Logger) (*bus.Conn, error) {
	return daemon.ConnectSaying(a.Ctx, cfg, "toolfleet "+a.Command, log, func(text string) { a.Say("%s", text) })
}

// Settings loads the settings in effect. Its errors are usage errors.
func (a *App) Settings() (*config.Config, error) {
	cfg, err := config.Load(a.given)
	if err != nil {
		return nil, Usage(err)
	}
	return cfg, nil
}

// Logger returns a logger that writes to the given writer, which is stderr or leads to it. quiet is
// the level if log.level is not set; "" keeps the default.
func (a *App) Logger(cfg *config.Config, to io.Writer, quiet string) (*slog.Logger, error) {
	level := cfg.Log.Level
	if !cfg.Given("log.level") && quiet != "" {
		level = quiet
	}
	log, err := telemetry.Logger(to, level, cfg.Log.Format, terminal.IsTerminal(a.Stderr))
	if err != nil {
		return nil, Usage(err)
	}
	return log, nil
}

// Load returns the settings, and a logger on stderr, for commands that run until a signal.
func (a *App) Load() (*config.Config, *slog.Logger, error) {
	cfg, err := a.Settings()
	if err != nil {
		return nil, nil, err
	}
	log, err := a.Logger(cfg, a.Stderr, "")
	if err == nil && cfg.File() != "" {
		log.Info("settings read", "file", cfg.File())
	}
	return cfg, log, err
}

// Print writes v to stdout as JSON: on a terminal indented, elsewhere on a line.
func (a *App) Print(v any) error {
	body, err := rawjson.Marshal(v)
	if err != nil {
		return err
	}
	return a.PrintRaw(body)
}

// PrintLine writes v to stdout as JSON on a line, for commands that write many values.
func (a *App) PrintLine(v any) error {
	body, err := rawjson.Marshal(v)
	if err == nil {
		_, err = a.Stdout.Write(append(body, '\n'))
	}
	return err
}

// PrintRaw writes a JSON value to stdout, as Print does.
func (a *App) PrintRaw(body json.RawMessage) error {
	if terminal.IsTerminal(a.Stdout) {
		var indented bytes.Buffer
		if json.Indent(&indented, body, "", "  ") == nil {
			body = indented.Bytes()
		}
	}
	_, err := a.Stdout.Write(append(body, '\n'))
	return err
}

// Table writes rows in columns to stdout, the first row being the header.
func (a *App) Table(rows [][]string) error {
	return terminal.WriteTable(a.Stdout, rows)
}
