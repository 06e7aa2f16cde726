package mcpserver

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

// waitsForPerson is the cause that ends waiting for a call that needs a person, before its
// client gives up.
type waitsForPerson struct{ text string }

func (w *waitsForPerson) Error() string { return w.text }

const (
	// lookEvery is how often the server asks again what a slow call waits for, because events
	// may be lost.
	lookEvery = 5 * time.Second
	// maxEarlier limits how many earlier batches are searched for a question for which the
	// call waits.
	maxEarlier = 8
)

// watchPeople ends waiting for a call that has taken AnswerWithin and needs a person. take
// gets the events of the call.
func (s *Server) watchPeople(ctx context.Context, v *visit, n named, end context.CancelCauseFunc) (take func(messages.Event)) {
	asked := make(chan struct{}, 1)
	go func() { // ends with ctx, which ends with the call
		select {
		case <-time.After(s.cfg.AnswerWithin):
		case <-ctx.Done():
			return
		}
		looks := time.NewTicker(lookEvery)
		defer looks.Stop()
		for {
			if text := waitsFor(ctx, v, n); text != "" {
				end(&waitsForPerson{text})
				return
			}
			select {
			case <-looks.C:
			case <-asked:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(e messages.Event) {
		if e.Type == messages.EventAwaiting {
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}
}

// waitsFor returns a sentence about the person for whom a call waits, because of a question
// about the call or about an earlier call of its session. It returns "" if the call waits for
// no person.
func waitsFor(ctx context.Context, v *visit, n named) string {
	own, err := v.Client.Timeline(ctx, n.session, n.id)
	if err != nil {
		return ""
	}
	if tool := questionIn(own); tool != "" {
		return "A person has to allow this call of " + tool + " first, and nobody has answered yet. It has not run."
	}
	if hasRun(own) {
		return ""
	}
	list, err := v.Client.Batches(ctx, n.session, client.ListOptions{})
	if err != nil {
		return ""
	}
	for i, b := range list.Batches {
		if b.Batch == n.id || i == maxEarlier {
			return ""
		}
		earlier, err := v.Client.Timeline(ctx, n.session, b.Batch)
		if err != nil {
			return ""
		}
		if tool := questionIn(earlier); tool != "" {
			return "This call waits for an earlier call of " + tool + ", which a person has to allow first. It has not run."
		}
	}
	return ""
}

// questionIn returns the tool of a call in the batch that waits for a person, or "" if no call
// does.
func questionIn(t messages.Timeline) string {
	asked := map[int]string{}
	for _, e := range t.Events {
		switch e.Type {
		case messages.EventAwaiting:
			asked[e.Index] = e.Tool
		case messages.EventRunning, messages.EventEnd:
			delete(asked, e.Index)
		}
	}
	for _, tool := range asked {
		return tool
	}
	return ""
}

// hasRun reports whether a call of a batch has run.
func hasRun(t messages.Timeline) bool {
	for _, e := range t.Events {
		if e.Type == messages.EventRunning {
			return true
		}
	}
	return false
}
