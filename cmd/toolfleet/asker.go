package main

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/messages"
)

// asker asks the person at the terminal about the calls of a batch that wait for one. Without a person nobody is an
// approver of the fleet in this process, and such calls are refused at once.
type asker struct {
	app     *app
	person  *person // nil: nobody is there
	display *display
	watched *watched
	calls   map[int]messages.Pending // what is asked about a call, by index; owned by who takes events
	key     approval.Key
	name    string
}

// settle makes the person the only approver of a fleet, with a key for its lifetime.
func (s *asker) settle(f *fleet) (err error) {
	f.policy.Approvers = nil // nobody else can reach this fleet
	if s.person == nil {
		return nil
	}
	if s.key, err = approval.NewKey(); err != nil {
		return err
	}
	s.name = userName(f.cfg.Tenant)
	f.policy.Approvers = []messages.Approver{{Name: s.name, Key: s.key.Public()}}
	s.display.asks = true
	s.watched = newWatched()
	s.watched.each = func(messages.Pending, bool) {}
	s.calls = map[int]messages.Pending{}
	return nil
}

// take is told every event of the batch.
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

func (s *asker) close(p messages.Pending, really bool) {
	if really {
		p.State = "gone"
		s.watched.take(p)
	}
}

// run asks until ctx ends.
func (s *asker) run(ctx context.Context, f *fleet) error {
	if s.person == nil {
		return nil
	}
	aside := *s.app // for what is said while nobody is asked
	aside.stderr = s.display
	d := &desk{app: &aside, client: client.Over(f.conn, f.cfg.Tenant), tenant: f.cfg.Tenant, key: s.key, name: s.name}
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
