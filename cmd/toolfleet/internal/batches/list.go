package batches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/progress"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

type lsCmd struct {
	daemon.Server
	command.OutputFlags
	Session string `placeholder:"ID" help:"Batches of this session."`
	Call    string `placeholder:"ID" help:"The batch with this call, by the provider's id."`
	Tenant  string `setting:"tenant" placeholder:"TOKEN" help:"Batches of this tenant. Default: of every one [$$TOOLFLEET_TENANT]."`
	Limit   int    `default:"100" placeholder:"N" help:"How many to list at most."`
}

// Help returns the text that --help shows below the command's usage.
func (lsCmd) Help() string {
	return `Lists the open batches, oldest first, and what each waits for. Reads of a session's batches run side by side, writes in order; for
a batch that waits for earlier ones, the list names the oldest of them. The command needs the rights of an operator.`
}

// openBatch is one open batch, as -o json prints it.
type openBatch struct {
	Tenant   string             `json:"tenant"`
	Session  messages.SessionID `json:"session"`
	Batch    messages.BatchID   `json:"batch"`
	Accepted time.Time          `json:"accepted"`
	Calls    int                `json:"calls"`
	progress.BatchStatus
	key wire.BatchKey
	seq uint64
}

func (c lsCmd) Run(a *command.App) error {
	if c.Limit < 1 {
		return command.Usagef("--limit is %d; it must be at least 1", c.Limit)
	}
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if !mayList(a.Ctx, conn) {
		return errors.New("this user may not read the log of batches; look as one who may, for example the operator of docs/identities.md")
	}
	tenant := "*"
	if cfg.Given("tenant") {
		tenant = cfg.Tenant
	}
	l := newListing(conn)
	list, more, err := l.list(a.Ctx, tenant, c.Session, messages.CallID(c.Call), c.Limit)
	if errors.Is(err, bus.ErrNoStream) {
		return fmt.Errorf("%w; no fleet has run on this server yet, or --prefix is another", err)
	}
	if err != nil {
		return err
	}
	now := conn.Now(a.Ctx)
	if c.JSON() {
		err = a.Print(map[string]any{"batches": list})
	} else if len(list) > 0 {
		err = a.Table(openRows(list, now))
	}
	if err == nil && l.mute {
		a.Say("%s, so how the batches stand is not known: `toolfleet doctor` looks why", noCoordinator)
	}
	switch {
	case err != nil:
		return err
	case more:
		a.Say("there are more; --limit lists more than %d", c.Limit)
	case len(list) == 0 && c.Call != "":
		a.Say("no open batch has the call %s. If its batch has its reply, use `toolfleet audit --call ID`", terminal.Clean(c.Call, 80))
		return command.ErrPrinted
	case len(list) == 0:
		a.Say("no batch is open")
	}
	return nil
}

func openRows(list []openBatch, now time.Time) [][]string {
	header := []string{"AGE", "SESSION", "BATCH", "CALLS", "STATE"}
	tenants := slices.ContainsFunc(list, func(b openBatch) bool { return b.Tenant != messages.OneTenant })
	if tenants {
		header = slices.Insert(header, 1, "TENANT")
	}
	rows := [][]string{header}
	for _, b := range list {
		state := b.Text(now)
		if b.Why == noCoordinator {
			state = "not told" // the reason is printed below the table
		}
		row := []string{terminal.Span(now.Sub(b.Accepted)), terminal.Clean(string(b.Session), 80), terminal.Clean(string(b.Batch), 80), fmt.Sprint(b.Calls), state}
		if tenants {
			row = slices.Insert(row, 1, b.Tenant)
		}
		rows = append(rows, row)
	}
	return rows
}

// mayList reports whether this user may read the log of batches. The server may not answer a
// user without that right, so mayList waits for at most 2*LookTimeout.
func mayList(ctx context.Context, conn *bus.Conn) bool {
	asking, cancel := context.WithTimeout(ctx, 2*command.LookTimeout)
	defer cancel()
	return conn.May(asking, "$JS.API.DIRECT.GET."+conn.Names().Stream(bus.Batches)) && asking.Err() == nil
}

// listing lists open batches and finds out what each waits for.
type listing struct {
	conn    *bus.Conn
	journal *journal.Journal
	heads   map[string]head // by tenant and session
	mute    bool            // a coordinator did not answer, so no further request is sent
}

// noCoordinator is the reason that all batches of the list show if no coordinator answers.
const noCoordinator = "no coordinator answers"

// head is the oldest open batch of a session.
type head struct {
	id  messages.BatchID
	seq uint64
}

func newListing(conn *bus.Conn) *listing {
	return &listing{conn: conn, journal: journal.New(conn), heads: map[string]head{}}
}

// list returns the open batches, oldest first, at most `most` of them. more reports that there
// are others. The tenant "*", the session "" and the call "" match any.
func (l *listing) list(ctx context.Context, tenant, session string, call messages.CallID, most int) (list []openBatch, more bool, err error) {
	token := "*"
	if session != "" {
		token = messages.Token(messages.SessionID(session))
	}
	found := []openBatch{}
	err = l.journal.EachOpen(ctx, tenant, token, func(a journal.Accepted) bool {
		b, calls := readOpen(a)
		if call != "" && !slices.ContainsFunc(calls, func(c messages.ToolCall) bool { return c.ID == call }) {
			return true
		}
		if more = len(found) == most; !more {
			found = append(found, b)
		}
		return !more
	})
	if err != nil || len(found) == 0 {
		return found, false, err
	}
	around, err := lookAround(ctx, l.conn)
	if err != nil {
		return nil, false, err
	}
	list = []openBatch{}
	for _, b := range found {
		open, err := l.place(ctx, &b)
		if err != nil {
			return nil, false, err
		}
		if open {
			b.BatchStatus = around.Explain(b.BatchStatus)
			list = append(list, b)
		}
	}
	return list, more, nil
}

// readOpen reads as much of a stored batch as possible, because the list also has batches that
// coordinators will refuse. If the ids in the body do not fit the key, it returns the key's
// tokens as ids.
func readOpen(a journal.Accepted) (b openBatch, calls []messages.ToolCall) {
	batch, err := messages.DecodeBatch(a.Body)
	b = openBatch{Tenant: a.Key.Tenant, Session: batch.Session, Batch: batch.ID, Accepted: a.Stored, key: a.Key, seq: a.Seq}
	if wire.KeyOf(a.Key.Tenant, batch.Session, batch.ID) != a.Key {
		b.Session, b.Batch = messages.SessionID(a.Key.Session), messages.BatchID(a.Key.Batch)
	}
	if err == nil {
		calls = callsOf(batch)
	}
	b.Calls = len(calls)
	return b, calls
}

// callsOf returns the calls of a batch, or none if its message cannot be decoded.
func callsOf(b messages.Batch) (calls []messages.ToolCall) {
	// A message that makes a codec panic must not fail the whole list. Coordinators catch that too.
	defer func() { _ = recover() }()
	codec, err := provider.For(b.Provider)
	if err != nil {
		return nil
	}
	calls, _ = codec.Decode(b.Message)
	return calls
}

// place sets the status of a batch. open is false if the batch has ended since.
func (l *listing) place(ctx context.Context, b *openBatch) (open bool, err error) {
	first, open, err := l.head(ctx, b.key)
	switch {
	case err != nil || !open || first.seq > b.seq:
		return false, err
	case first.seq < b.seq && !l.begun(ctx, b.key):
		b.BatchStatus = progress.BatchStatus{State: progress.StateBehind, Behind: first.id}
		return true, nil
	case l.mute:
		b.BatchStatus = progress.BatchStatus{State: progress.StateUnknown, Why: noCoordinator}
		return true, nil
	}
	t, err := command.ClientOver(l.conn, b.key.Tenant).Timeline(ctx, b.Session, b.Batch)
	switch {
	case ctx.Err() != nil:
		return true, context.Cause(ctx)
	case errors.Is(err, client.ErrNoFleet), errors.Is(err, context.DeadlineExceeded):
		l.mute = true
		b.BatchStatus = progress.BatchStatus{State: progress.StateUnknown, Why: noCoordinator}
		return true, nil
	case err != nil:
		b.BatchStatus = progress.BatchStatus{State: progress.StateUnknown, Why: err.Error()}
		return true, nil
	}
	b.BatchStatus = progress.StatusOf(t)
	return t.Status == messages.BatchRunning, nil
}

// begun reports whether a batch has begun. A batch that has begun does not wait for an earlier
// batch. begun returns false if the journal cannot be read.
func (l *listing) begun(ctx context.Context, key wire.BatchKey) bool {
	begun, err := l.journal.Begun(ctx, key)
	return begun && err == nil
}

// head returns the oldest open batch of a session and caches it.
func (l *listing) head(ctx context.Context, key wire.BatchKey) (first head, found bool, err error) {
	session := key.Tenant + "." + key.Session
	if first, found = l.heads[session]; found {
		return first, true, nil
	}
	a, found, err := l.journal.Head(ctx, key.Tenant, key.Session)
	if err == nil && found {
		b, _ := readOpen(a)
		first = head{b.Batch, a.Seq}
		l.heads[session] = first
	}
	return first, found, err
}

// lookAround reads the fleet's workers and tools, which explain why a batch waits.
func lookAround(ctx context.Context, conn *bus.Conn) (around progress.Fleet, err error) {
	fleet, err := command.ReadFleet(ctx, conn)
	if err != nil {
		return around, err
	}
	return progress.NewFleet(fleet.Workers, fleet.Current()), nil
}
