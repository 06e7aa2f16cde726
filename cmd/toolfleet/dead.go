package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
)

type deadCmd struct {
	Ls   deadLsCmd   `cmd:"" help:"List the dead letters, newest first."`
	Show deadShowCmd `cmd:"" help:"Show a dead letter, with its body."`
	Drop deadDropCmd `cmd:"" help:"Delete dead letters."`
}

// Help returns the text that --help shows below the command's usage.
func (deadCmd) Help() string {
	return `A message that cannot be processed at all (its subject has no address, or its job cannot be read) becomes a dead letter. It is
kept with the reason for dead_ttl and blocks nothing. It is never run again: its sender has to send a correct message.`
}

// deadMessage is one dead letter, as -o json prints it.
type deadMessage struct {
	Seq      uint64    `json:"seq"`
	SetAside time.Time `json:"set_aside"`
	wire.DeadLetter
}

func asDeadMessage(e journal.DeadLetterEntry) deadMessage {
	return deadMessage{e.Seq, e.Stored, e.Letter}
}

type deadLsCmd struct {
	daemon.Server
	command.OutputFlags
	Limit int `default:"100" placeholder:"N" help:"How many to list at most."`
}

func (d deadLsCmd) Run(a *command.App) error {
	if d.Limit < 1 {
		return command.Usagef("--limit is %d; it must be at least 1", d.Limit)
	}
	return withJournal(a, func(j *journal.Journal) error {
		entries, err := j.DeadLetters(a.Ctx, d.Limit)
		if err != nil {
			return err
		}
		if d.JSON() {
			list := []deadMessage{}
			for _, e := range entries {
				list = append(list, asDeadMessage(e))
			}
			return a.Print(map[string]any{"dead": list})
		}
		if len(entries) == 0 {
			a.Say("there are no dead letters")
			return nil
		}
		rows := [][]string{{"SEQ", "SINCE", "SIZE", "SUBJECT", "REASON"}}
		for _, e := range entries {
			rows = append(rows, []string{
				fmt.Sprint(e.Seq), e.Stored.UTC().Format(time.RFC3339), fmt.Sprint(e.Letter.Size), terminal.Clean(e.Letter.Subject, 80), terminal.Clean(e.Letter.Reason, 120),
			})
		}
		return a.Table(rows)
	})
}

type deadShowCmd struct {
	daemon.Server
	command.OutputFlags
	Seq uint64 `arg:"" help:"Number of the message, from the list."`
}

func (d deadShowCmd) Run(a *command.App) error {
	return withJournal(a, func(j *journal.Journal) error {
		e, err := j.DeadLetterAt(a.Ctx, d.Seq)
		if err != nil {
			return noDeadLetter(d.Seq, err)
		}
		if d.JSON() {
			return a.Print(asDeadMessage(e))
		}
		return showDead(a, e)
	})
}

func showDead(a *command.App, e journal.DeadLetterEntry) error {
	b := e.Letter
	rows := [][]string{
		{"seq", fmt.Sprint(e.Seq)}, {"since", e.Stored.UTC().Format(time.RFC3339)},
		{"subject", escaped([]byte(b.Subject), "")}, {"reason", escaped([]byte(b.Reason), "")}, {"size", fmt.Sprint(b.Size)},
	}
	if !b.Stored.IsZero() {
		rows = append(rows, []string{"stored", b.Stored.UTC().Format(time.RFC3339)})
	}
	for _, name := range rawjson.SortedKeys(b.Header) {
		for _, value := range b.Header[name] {
			rows = append(rows, []string{"header", escaped([]byte(name+": "+value), "")})
		}
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	if len(b.Body) < b.Size {
		a.Say("the first %d of %d bytes were kept", len(b.Body), b.Size)
	}
	_, err := fmt.Fprintf(a.Stdout, "\n  %s\n", escaped(b.Body, "\n  "))
	return err
}

type deadDropCmd struct {
	daemon.Server
	Seq []uint64 `arg:"" help:"Numbers of the messages, from the list."`
}

func (d deadDropCmd) Run(a *command.App) error {
	return withJournal(a, func(j *journal.Journal) error {
		for _, seq := range d.Seq {
			if err := j.DropDeadLetter(a.Ctx, seq); err != nil {
				return noDeadLetter(seq, err)
			}
			a.Say("dead letter %d is deleted", seq)
		}
		return nil
	})
}

// noDeadLetter explains that there is no dead letter with this sequence. It returns other errors
// unchanged.
func noDeadLetter(seq uint64, err error) error {
	if errors.Is(err, bus.ErrNotFound) {
		return fmt.Errorf("there is no dead letter %d; `toolfleet dead ls` lists them", seq)
	}
	return err
}

// withJournal connects to the server and calls do with the fleet's journal.
func withJournal(a *command.App, do func(*journal.Journal) error) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = do(journal.New(conn))
	if errors.Is(err, bus.ErrNoStream) {
		return fmt.Errorf("%w; no fleet has run on this server yet, or --prefix is another", err)
	}
	return err
}

// escaped renders bytes from outside as text that cannot affect a terminal: it replaces every
// character that is not printable by an escape. A line end is replaced by newline, or by an
// escape if newline is "".
func escaped(text []byte, newline string) string {
	var out strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, text[0])
		case r == '\n' && newline != "":
			out.WriteString(newline)
		case unicode.IsPrint(r):
			out.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&out, `\x%02x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		text = text[size:]
	}
	return out.String()
}
