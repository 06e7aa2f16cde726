package approvals

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/progress"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/messages"
)

// Prompter asks the person at the terminal about the calls of a batch that need an approval.
// Without a terminal, the fleet in this process has no approvers and refuses calls that need
// an approval at once.
type Prompter struct {
	app     *command.App
	prompt  *terminal.Prompt // nil: no terminal to ask at
	display *progress.Display
	watched *watched
	// calls holds the last question of each call, by the call's index. Only the goroutine that
	// takes events uses it.
	calls map[int]messages.Pending
	key   approval.Key
	name  string
}

// NewPrompter returns a prompter for one batch on a fleet in this process. prompt is nil if there
// is no person to ask.
func NewPrompter(a *command.App, prompt *terminal.Prompt, d *progress.Display) *Prompter {
	return &Prompter{app: a, prompt: prompt, display: d}
}

// SetApprovers makes the person the only approver of the policy of a fleet in this process, with a
// key that lives as long as the process. Without a person the policy gets no approvers.
func (s *Prompter) SetApprovers(p *config.Policy, tenant string) (err error) {
	p.Approvers = nil // no other approver can reach a fleet in this process
	if s.prompt == nil {
		return nil
	}
	if s.key, err = approval.NewKey(); err != nil {
		return err
	}
	s.name = userName(tenant)
	p.Approvers = []messages.Approver{{Name: s.name, Key: s.key.Public()}}
	s.display.PromptsHere()
	s.watched = newWatched()
	s.watched.each = func(messages.Pending, bool) {}
	s.calls = map[int]messages.Pending{}
	return nil
}

// Take handles one event of the batch: it updates the display, and opens and closes questions. A
// question closes when its call runs or ends, or gets a new question.
func (s *Prompter) Take(e messages.Event) {
	s.display.Take(e)
	if s.prompt == nil {
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

// close closes the question p with the state gone. If really is false, the call has no
// question, and close does nothing.
func (s *Prompter) close(p messages.Pending, really bool) {
	if really {
		p.State = "gone"
		s.watched.take(p)
	}
}

// Run prompts for the open questions until ctx ends, or the person gives no answer. c is a client
// of the fleet for the tenant.
func (s *Prompter) Run(ctx context.Context, c *client.Client, tenant string) error {
	if s.prompt == nil {
		return nil
	}
	aside := *s.app // a copy whose lines go above the board
	aside.Stderr = s.display
	d := &approvalClient{app: &aside, client: c, tenant: tenant, key: s.key, name: s.name}
	asking := *d
	asking.app = s.app
	err := d.answerAll(ctx, s.watched, func(ctx context.Context, q messages.Approval) (err error) {
		s.display.WithPrompt(func() { err = asking.prompt(ctx, s.prompt, q, true) })
		return err
	})
	if errors.Is(err, terminal.ErrNoAnswer) {
		aside.Say("nobody answers: the calls wait until their questions expire; Ctrl-C ends all")
		return nil
	}
	return err
}
