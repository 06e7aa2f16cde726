package e2e

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// schemaOf is the schema of what travels under a verb.
var schemaOf = map[messages.Verb]string{
	messages.VerbBatch: "batch", messages.VerbRun: "batch", messages.VerbReply: "reply", messages.VerbFinal: "reply",
	messages.VerbRefused: "reply", messages.VerbEvent: "event", messages.VerbRead: "job", messages.VerbWrite: "job",
	messages.VerbCall: "call-record", messages.VerbPlan: "plan-record", messages.VerbResult: "result",
	messages.VerbNotify: "notice", messages.VerbGet: "get",
}

// Every message that a fleet puts on the wire is what its schema says.
func TestEveryMessageFitsItsSchema(t *testing.T) {
	f, _ := counted(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	watcher := f.connect("watcher")
	defer watcher.Close()
	var mu sync.Mutex
	seen := map[messages.Verb]int{}
	_, err := watcher.Subscribe("toolfleet.>", "", func(m bus.Msg) {
		mu.Lock()
		defer mu.Unlock()
		verb := messages.Verb(strings.Split(m.Subject, ".")[1])
		seen[verb]++
		name, known := schemaOf[verb]
		if !known {
			t.Errorf("nobody knows what travels on %s", m.Subject)
			return
		}
		if len(m.Data) == 0 && verb == messages.VerbGet {
			return
		}
		schema, err := schemas.For(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if err := schema.Validate(m.Data); err != nil {
			t.Errorf("%s does not fit %s.json: %v\n%s", m.Subject, name, err, m.Data)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range messages.Providers {
		f.run(batchIn(p, "s", "mixed "+string(p), call{"echo", `{"n":1}`}, call{"count", ""}, call{"nope", ""}, call{"count", ""}, call{"echo", ""}))
	}
	conflict := batchIn(messages.Canonical, "s", "mixed canonical", call{"echo", ""})
	if _, err := f.client.Run(t.Context(), conflict, nil); err == nil {
		t.Error("another body under an id that was used was not refused")
	}
	if _, err := f.client.Run(t.Context(), messages.Batch{ID: "bad", Session: "s", Provider: messages.Gemini, Message: json.RawMessage(`{}`)}, nil); err == nil {
		t.Error("a message of no provider's shape was not refused")
	}
	if _, err := f.client.GetFull(t.Context(), "s", "mixed gemini"); err != nil {
		t.Error(err)
	}
	for _, verb := range []messages.Verb{messages.VerbBatch, messages.VerbRun, messages.VerbReply, messages.VerbRefused, messages.VerbEvent, messages.VerbRead,
		messages.VerbWrite, messages.VerbCall, messages.VerbPlan, messages.VerbResult, messages.VerbNotify, messages.VerbFinal} {
		f.until("a "+string(verb)+" message was seen", func() bool { mu.Lock(); defer mu.Unlock(); return seen[verb] > 0 })
	}
}
