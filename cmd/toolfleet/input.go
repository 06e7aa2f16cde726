package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// input holds the flags that select a batch.
type input struct {
	File     string `arg:"" optional:"" help:"A batch, or with --provider a model's message as the provider gave it, as JSON. - is stdin, and the default."`
	Provider string `placeholder:"NAME" help:"Whose message FILE is: anthropic, openai-chat, openai-responses, bedrock, gemini, canonical."`
	Session  string `placeholder:"ID" help:"The conversation that the batch belongs to; its writes run in order. Default: the batch's own, else a new one."`
	BatchID  string `name:"batch" placeholder:"ID" help:"Id of the batch, its idempotency key. Default: the batch's own, else a new one."`
}

// maxInput is how many bytes of a batch are read: 64 MiB. NATS servers accept no larger
// message.
const maxInput = 64 << 20

// read returns the batch that the flags select. whole has the original bytes of the batch, or
// is nil if the flags add or change anything. A caller sends whole unchanged, because the
// fleet treats two submits as the same batch only if their bytes are equal.
func (in input) read(a *command.App) (batch messages.Batch, whole []byte, err error) {
	body, name, err := in.body(a)
	if err != nil {
		return messages.Batch{}, nil, err
	}
	batch, err = in.parse(body)
	if err != nil {
		return batch, nil, fmt.Errorf("%s: %w", name, err)
	}
	if said, err := messages.DecodeBatch(body); err == nil && said.ID == batch.ID && said.Session == batch.Session && said.Provider == batch.Provider {
		whole = body
	}
	return batch, whole, nil
}

func (in input) body(a *command.App) (body []byte, name string, err error) {
	from := a.Stdin
	name = "stdin"
	if in.File != "" && in.File != "-" {
		f, err := os.Open(in.File)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", command.Usagef("there is no file %s; give the path of a batch, or - for stdin", in.File)
		}
		if err != nil {
			return nil, "", command.Usage(err)
		}
		defer f.Close()
		from, name = f, in.File
	} else if terminal.IsTerminal(a.Stdin) {
		return nil, "", command.Usagef("no batch: name a file (examples/anthropic.json is one), or pipe one in")
	}
	body, err = io.ReadAll(io.LimitReader(from, maxInput+1))
	switch {
	case err != nil:
		return nil, "", command.Usage(fmt.Errorf("read %s: %w", name, err))
	case len(body) > maxInput:
		return nil, "", command.Usagef("%s is larger than %d bytes; no batch is", name, maxInput)
	case len(bytes.TrimSpace(body)) == 0:
		return nil, "", command.Usagef("%s is empty; want a batch, or with --provider a model's message", name)
	}
	return body, name, nil
}

// parse reads a batch (an object with provider and message) or, with --provider, a bare
// message. Flags override the members of the batch. Missing ids become random ids.
func (in input) parse(body []byte) (messages.Batch, error) {
	batch := messages.Batch{V: messages.Version}
	err := rawjson.CheckSyntax(body)
	var members map[string]json.RawMessage
	if err == nil && rawjson.TypeOf(body) == "an object" { // a bare message may be a list
		members, err = rawjson.Members(body)
	}
	if err != nil {
		return batch, &messages.Refusal{Class: messages.ClassMalformedMessage, Message: err.Error()}
	}
	switch {
	case members["provider"] != nil && members["message"] != nil:
		if batch, err = messages.DecodeBatch(in.complete(members)); err != nil {
			return batch, err
		}
	case in.Provider == "":
		return batch, command.Usagef("this is no batch (an object with provider and message); is it a model's message? Then say whose with --provider: %s", providers())
	default:
		batch.Message = body
	}
	if in.Provider != "" {
		batch.Provider = messages.Provider(in.Provider)
	}
	batch.ID = messages.BatchID(cmp.Or(in.BatchID, string(batch.ID), "b-"+random()))
	batch.Session = messages.SessionID(cmp.Or(in.Session, string(batch.Session), "s-"+random()))
	return batch, nil
}

// complete adds the ids that a batch lacks: those of the flags, or random ones.
func (in input) complete(members map[string]json.RawMessage) []byte {
	for name, id := range map[string]string{"id": cmp.Or(in.BatchID, "b-"+random()), "session": cmp.Or(in.Session, "s-"+random())} {
		if members[name] == nil {
			members[name] = rawjson.Quote(id)
		}
	}
	return rawjson.JoinMembers(members)
}

// random returns the random end of an id: 12 characters.
func random() string { return strings.ToLower(rand.Text()[:12]) }

func providers() string {
	var names []string
	for _, p := range messages.Providers {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}
