package main

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/messages"
)

// asker prompts the person at the terminal about the calls of a batch that need approval. Without a
// person, the fleet in this process has no approvers and refuses such calls at once.
type asker struct {
	app     *app
	person  *person // nil: no terminal to ask at
	display *display
	watched *watched
	// calls holds the last question by call index. The goroutine that takes events owns it.
	calls map[int]messages.Pending
	key   approval.Key
	name  string
}

// newAsker returns the prompts of a batch. person is nil where nobody can be asked.
func newAsker(a *app, person *person, d *display) *asker {
	return &asker{app: a, person: person, display: d}
}

// setApprovers makes the person the only approver of the policy of a fleet in this process, with a
// key that lives as long as the process. Without a person the policy gets no approvers.
func (s *asker) setApprovers(p *config.Policy, tenant string) (err error) {
	p.Approvers = nil // the fleet is in this process: no other approver can reach it
	if s.person == nil {
		return nil
	}
	if s.key, err = approval.NewKey(); err != nil {
		return err
	}
	s.name = userName(tenant)
	p.Approvers = []messages.Approver{{Name: s.name, Key: s.key.Public()}}
	s.display.promptsHere()
	s.watched = newWatched()
	s.watched.each = func(messages.Pending, bool) {}
	s.calls = map[int]messages.Pending{}
	return nil
}

// take handles one event of the batch: it updates the display, and opens and closes questions. A
// question closes when its call runs or ends, or gets a new question.
func (s *asker) take(e messages.Event) {
	s.display.take(e)
	if s.person == nil {
		return
	}
	asked, known := s.calls[e.Index]
	switch {
	case e.Type == messages.EventAwaiting && e.Approval != nil:
		s.close(asked, known && asked.ID != e.Approval.ID)
		s.calls[e.Index] = *e.Approval
		s.watched.take(*e.Approval)
	case e.Type == messages.EventRunning, e.Type == messages.EventEnd, e.Type == messages.EventResult:
		s.close(asked, known)
	}
}

// close marks a question as gone if really is set: there was one.
func (s *asker) close(p messages.Pending, really bool) {
	if really {
		p.State = "gone"
		s.watched.take(p)
	}
}

// run prompts for the open questions until ctx ends or the person gives no answer. c is a client of
// the fleet, for the tenant.
func (s *asker) run(ctx context.Context, c *client.Client, tenant string) error {
	if s.person == nil {
		return nil
	}
	aside := *s.app // lines outside a prompt go above the board
	aside.stderr = s.display
	d := &desk{app: &aside, client: c, tenant: tenant, key: s.key, name: s.name}
	asking := *d
	asking.app = s.app
	err := d.answerAll(ctx, s.watched, func(ctx context.Context, q messages.Approval) (err error) {
		s.display.ask(func() { err = asking.interview(ctx, s.person, q, true) })
		return err
	})
	if errors.Is(err, errNoAnswer) {
		aside.say("nobody answers: the calls wait until their questions expire; Ctrl-C ends all")
		return nil
	}
	return err
}
