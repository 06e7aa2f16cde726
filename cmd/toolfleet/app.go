package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/messages"
)

// app is what every command is run with.
type app struct {
	ctx            context.Context        // ends at the first signal
	hurry          func() <-chan struct{} // closed at the second
	stdin          io.Reader
	stdout, stderr io.Writer
	command        string        // as it is typed: "tools export"
	flags          []config.Flag // the settings that were given as flags
	file           string        // --config
	last           func()        // what may take a while, for when everything is said; nil: nothing
}

// take picks the settings out of the command line.
func (a *app) take(parsed *kong.Context) {
	for _, node := range parsed.Path {
		if node.Command != nil {
			a.command = strings.TrimSpace(a.command + " " + node.Command.Name)
		}
	}
	for _, f := range parsed.Flags() {
		switch key := f.Tag.Get("setting"); {
		case !f.Set || key == "":
		case key == "config":
			a.file = f.Target.String()
		default:
			a.flags = append(a.flags, config.Flag{Name: "--" + f.Name, Key: key, Text: f.Target.String()})
		}
	}
}

// usage is an error in what the user gave: flags, settings, files.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

func wrong(format string, args ...any) error { return usage{fmt.Errorf(format, args...)} }

// errSaid ends a command whose failure has been told already.
var errSaid = errors.New("failed, as was said")

// end is the exit status of a command, whose error it tells.
func (a *app) end(err error) int {
	if a.last != nil {
		defer a.last()
	}
	var u usage
	switch {
	case err == nil:
		return done
	case errors.Is(err, errSaid), errors.Is(err, syscall.EPIPE): // nobody reads on
		return failed
	case errors.As(err, &u):
		a.say("toolfleet %s: %v", a.command, err)
		return misuse
	}
	a.say("toolfleet %s: %v", a.command, err)
	return failed
}

// say writes a line for people.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, format+"\n", args...)
}

// settings is the settings in effect.
func (a *app) settings() (*config.Config, error) {
	cfg, err := config.Load(config.Sources{File: a.file, Flags: a.flags})
	if err != nil {
		return nil, usage{err}
	}
	return cfg, nil
}

// logger writes to stderr, or to what stands before it. quiet is the level where the settings say nothing.
func (a *app) logger(cfg *config.Config, to io.Writer, quiet string) (*slog.Logger, error) {
	level := cfg.Log.Level
	if !cfg.Given("log.level") && quiet != "" {
		level = quiet
	}
	log, err := telemetry.Logger(to, level, cfg.Log.Format, isTerminal(a.stderr))
	if err != nil {
		return nil, usage{err}
	}
	return log, nil
}

// load is the settings and a logger for a command that runs until it is told to end.
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
	body, err := messages.Marshal(v)
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
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return w.Flush()
}

// isTerminal reports whether a person looks at w.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colours reports whether w takes them: a terminal, and nobody asked for none.
func colours(w any) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
