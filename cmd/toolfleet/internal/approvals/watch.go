package approvals

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/messages"
)

type watchCmd struct {
	questionFlags
	keyFlags
}

// Help returns the text that --help shows below the command's usage.
func (watchCmd) Help() string {
	return `Prints the open questions, then each new one, who approves it, and how it is closed. With -o json each is a JSON object on a
line; a closed question has a state. With --key, on a terminal, each question is shown in full and may be answered. Ctrl-C ends it.`
}

func (c watchCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	prompt := terminal.PromptAt(a.Stdin, a.Stderr)
	asks := prompt != nil && KeyFile(cfg) != "" && !c.JSON()
	return withClient(a, access(asks), func(d *approvalClient) error {
		watching, end := context.WithCancelCause(a.Ctx)
		defer end(nil)
		group, ctx := errgroup.WithContext(watching)
		w := newWatched()
		w.each = func(p messages.Pending, shown bool) {
			if asks && (p.State == "" || shown) { // the prompt shows it
				return
			}
			if err := c.tell(a, p); err != nil {
				end(err) // stdout is closed
			}
		}
		group.Go(func() error { return d.follow(ctx, w) })
		if asks {
			group.Go(func() error {
				return d.answerAll(ctx, w, func(ctx context.Context, q messages.Approval) error {
					// This person has approved; the question needs another person.
					if slices.Contains(q.Pending().Agreed, d.name) {
						return nil
					}
					return d.prompt(ctx, prompt, q, false)
				})
			})
		}
		err := group.Wait()
		if a.Ctx.Err() != nil || errors.Is(err, terminal.ErrNoAnswer) { // Ctrl-C, Ctrl-D
			return nil
		}
		return cmp.Or(context.Cause(watching), err)
	})
}

// tell prints one change of a question, as a line or as JSON.
func (c watchCmd) tell(a *command.App, p messages.Pending) error {
	if c.JSON() {
		return a.PrintLine(p)
	}
	_, err := fmt.Fprintln(a.Stdout, newsLine(p))
	return err
}

// newsLine returns one line about a question: open, approved by some of its approvers, or closed.
func newsLine(p messages.Pending) string {
	if p.State == "" && len(p.Agreed) > 0 {
		return fmt.Sprintf("%s  %d of %d agreed (%s), expires in %s  %s", terminal.ShortID(p.ID), len(p.Agreed), p.Approvers, terminal.Clean(strings.Join(p.Agreed, ", "), 80), terminal.Span(time.Until(p.Expires)), terminal.Clean(p.Line, 160))
	}
	if p.State != "" {
		by := ""
		switch n := len(p.Agreed); {
		case n > 0 && p.State == messages.PendingGranted:
			by = " by " + terminal.Clean(strings.Join(p.Agreed, ", "), 80)
		case n > 0 && p.State == messages.PendingDenied: // the last one ended it
			by = " by " + terminal.Clean(p.Agreed[n-1], 80)
		}
		return fmt.Sprintf("%s  %s%s  %s", terminal.ShortID(p.ID), terminal.Clean(p.State, 20), by, terminal.Clean(p.Line, 160))
	}
	return fmt.Sprintf("%s  %s, expires in %s, asked by %s  %s", terminal.ShortID(p.ID), terminal.Clean(string(p.Tier), 20), terminal.Span(time.Until(p.Expires)),
		terminal.Clean(p.Requester+"/"+string(p.Session), 40), terminal.Clean(p.Line, 160))
}

// watched tracks the questions of one tenant: their last known states, and the questions that
// the person has not seen yet. Changes may come twice or out of order.
type watched struct {
	// each is called for every change, one call at a time and with mu held. shown says that
	// next has returned the question before.
	each func(p messages.Pending, shown bool)

	mu     sync.Mutex
	known  map[string]messages.Pending // last known state by id; guarded by mu
	queue  []messages.Pending          // open and not returned by next yet; guarded by mu
	shown  map[string]bool             // returned by next, by id; guarded by mu
	closes map[string]func()           // cancels the prompt of a question, by id; guarded by mu
	more   chan struct{}               // has a value if the queue may have grown; holds one at most
}

func newWatched() *watched {
	return &watched{known: map[string]messages.Pending{}, shown: map[string]bool{}, closes: map[string]func(){}, more: make(chan struct{}, 1)}
}

// take handles a change of a question. It ignores one that is not newer than the last known state:
// a closed question does not reopen, and approvals do not become fewer. A newer question about the
// same call closes the older one with the state "gone".
func (w *watched) take(p messages.Pending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, seen := w.known[p.ID]
	if seen && (last.State != "" || p.State == "" && len(p.Agreed) <= len(last.Agreed)) {
		return
	}
	for _, other := range w.known {
		if replaces(p, other) {
			other.State = "gone"
			w.settle(other)
		}
	}
	w.settle(p)
	if p.State == "" && !seen {
		w.queue = append(w.queue, p)
		select {
		case w.more <- struct{}{}:
		default:
		}
	}
}

// settle stores the state of a question and reports it. A state that closes the question also
// cancels its prompt. The caller holds mu.
func (w *watched) settle(p messages.Pending) {
	w.known[p.ID] = p
	w.each(p, w.shown[p.ID])
	if ends := w.closes[p.ID]; p.State != "" && ends != nil {
		ends()
	}
}

// replaces reports whether p replaces another open question about the same call: a person has
// edited the arguments, or the question was asked anew.
func replaces(p, other messages.Pending) bool {
	same := p.Tenant == other.Tenant && p.Session == other.Session && p.Batch == other.Batch && p.Index == other.Index
	later := p.Asked.After(other.Asked) || p.Asked.Equal(other.Asked) && (p.State != "" || len(p.Agreed) > 0)
	return same && later && p.ID != other.ID && other.State == ""
}

// next returns the oldest open question that it has not returned yet, and a context that is
// cancelled with errClosed once the question closes. The caller calls done when it has finished
// with the question. found is false if there is none.
func (w *watched) next(ctx context.Context) (p messages.Pending, open context.Context, done func(), found bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 {
		p, w.queue = w.queue[0], w.queue[1:]
		if w.known[p.ID].State != "" {
			continue
		}
		w.shown[p.ID] = true
		open, closed := context.WithCancelCause(ctx)
		w.closes[p.ID] = func() { closed(errClosed) }
		return p, open, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.closes, p.ID)
			closed(nil)
		}, true
	}
	return p, ctx, func() {}, false
}

// follow feeds w with every open question and every change until ctx ends.
func (d *approvalClient) follow(ctx context.Context, w *watched) error {
	list, err := d.open(ctx)
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		d.app.Say("watching tenant %s; nothing is open. Ctrl-C ends it", terminal.Clean(d.tenant, 64))
	default:
		d.app.Say("watching tenant %s; %s open. Ctrl-C ends it", terminal.Clean(d.tenant, 64), terminal.Count(len(list), "question"))
	}
	for _, p := range list { // the next one to expire first
		w.take(p)
	}
	for p, err := range d.client.WatchApprovals(ctx) {
		if err != nil {
			return explainRefusal(err)
		}
		w.take(p)
	}
	return nil
}

// answerAll prompts for one question after another until ctx ends or the person gives no answer. It
// prints any other failure and goes on with the next question.
func (d *approvalClient) answerAll(ctx context.Context, w *watched, ask func(context.Context, messages.Approval) error) error {
	for {
		p, open, done, found := w.next(ctx)
		if !found {
			select {
			case <-w.more:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		q, err := d.show(open, p)
		if err == nil {
			err = ask(open, q)
		}
		done()
		switch {
		case errors.Is(err, terminal.ErrNoAnswer):
			return err
		case err != nil && ctx.Err() == nil:
			d.app.Say("%s: %v", terminal.ShortID(p.ID), err)
		}
	}
}
