package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/messages"
)

type approvalsCmd struct {
	Ls      approvalsLsCmd      `cmd:"" help:"List the open questions, the most urgent first."`
	Show    approvalsShowCmd    `cmd:"" help:"Show a question, with all of its arguments."`
	Approve approvalsApproveCmd `cmd:"" help:"Let the call run, with exactly the arguments that are shown."`
	Deny    approvalsDenyCmd    `cmd:"" help:"Never let the call run. The model reads why."`
	Edit    approvalsEditCmd    `cmd:"" help:"Let the call run with other arguments. The model is told."`
	Watch   approvalsWatchCmd   `cmd:"" help:"Wait for questions; on a terminal, with a key, answer them one after the other."`
	Key     approvalsKeyCmd     `cmd:"" help:"Make a key to sign decisions with, and print the policy's entry for it."`
}

// Help is shown below the command's usage.
func (approvalsCmd) Help() string {
	return `A call for which the policy wants a person waits until somebody answers, for approval_ttl. An id may be shortened to a
beginning that no other open question shares. Decisions are signed with the key of an approver whom the policy names.`
}

// bureau holds the flags that every approvals command has.
type bureau struct {
	daemon.Server
	shape
	Tenant string `setting:"tenant" placeholder:"TOKEN" help:"Tenant whose calls wait, if not that of the settings: _ in a fleet with one tenant [$$TOOLFLEET_TENANT]."`
}

// signs holds the flags of the commands that decide: the approver's key and name.
type signs struct {
	Key string `setting:"approver.key" placeholder:"FILE"`
	As  string `setting:"approver.name" placeholder:"NAME"`
}

type approvalsLsCmd struct{ bureau }

func (c approvalsLsCmd) Run(a *app) error {
	return withClient(a, readOnly, func(d *desk) error {
		list, err := d.open(a.ctx)
		if err != nil {
			return err
		}
		if c.json() {
			return a.print(messages.PendingList{V: messages.Version, Pending: append([]messages.Pending{}, list...)})
		}
		if len(list) == 0 {
			a.say("%s", d.nothingOpen())
			return nil
		}
		rows := pendingRows(list, time.Now())
		if f, ok := a.stdout.(*os.File); ok && isTerminal(f) {
			if width, _, err := term.GetSize(int(f.Fd())); err == nil {
				rows = fit(rows, width, "AGE", "ASKED BY", "AGREED")
			}
		}
		return a.table(rows)
	})
}

// pendingRows returns a header and one table row per open question.
func pendingRows(list []messages.Pending, now time.Time) [][]string {
	rows := [][]string{{"ID", "TIER", "AGE", "EXPIRES IN", "ASKED BY", "AGREED", "CALL"}}
	ids := shortIDs(list)
	for i, p := range list {
		rows = append(rows, []string{
			ids[i], clean(string(p.Tier), 20), span(now.Sub(p.Asked)), span(p.Expires.Sub(now)), clean(p.Requester+"/"+string(p.Session), 40),
			fmt.Sprintf("%d of %d", len(p.Agreed), p.Approvers), clean(p.Line, 160),
		})
	}
	return rows
}

type approvalsShowCmd struct {
	bureau
	ID string `arg:"" optional:"" help:"The question's id, or its beginning. Default: the only one that is open."`
}

func (c approvalsShowCmd) Run(a *app) error {
	return withClient(a, readOnly, func(d *desk) error {
		p, err := d.find(a.ctx, c.ID)
		if err != nil {
			return err
		}
		q, err := d.show(a.ctx, p)
		if err != nil {
			return err
		}
		if c.json() {
			return a.print(q)
		}
		_, err = fmt.Fprint(a.stdout, shown(a.stdout, q))
		return err
	})
}

type approvalsApproveCmd struct {
	bureau
	signs
	ID     string `arg:"" optional:"" help:"The question's id, or its beginning. Default: the only one that is open."`
	Ticket string `placeholder:"TEXT" help:"The ticket that a critical call needs."`
	Yes    bool   `help:"Do not ask. Needed without a terminal, and then with an ID."`
}

func (c approvalsApproveCmd) Run(a *app) error {
	return withClient(a, withKey, func(d *desk) error {
		q, person, err := d.pick(c.ID, c.Yes)
		if err != nil {
			return err
		}
		s := said{verdict: messages.VerdictApprove, ticket: c.Ticket}
		if person != nil {
			a.say("%s", shown(a.stderr, q))
			if s.ticket, err = askTicket(a.ctx, person, q, s); err != nil {
				return err
			}
			if err := agreesTo(person.yes(a.ctx, "approve?")); err != nil {
				return err
			}
		}
		return d.answer(q, s, c.json())
	})
}

type approvalsDenyCmd struct {
	bureau
	signs
	ID     string `arg:"" optional:"" help:"The question's id, or its beginning. Default: the only one that is open."`
	Reason string `placeholder:"TEXT" help:"Why. The model reads it."`
	Yes    bool   `help:"Do not ask. Wants an ID and --reason, which alone says as much."`
}

func (c approvalsDenyCmd) Run(a *app) error {
	return withClient(a, withKey, func(d *desk) error {
		if c.Yes && c.Reason == "" {
			return usagef("say why with --reason: the model reads it")
		}
		q, person, err := d.pick(c.ID, c.Yes || c.Reason != "")
		if err != nil {
			return err
		}
		if person != nil {
			a.say("%s", shown(a.stderr, q))
			if c.Reason, err = person.ask(a.ctx, "why not? The model reads it: "); err != nil {
				return err
			}
		}
		if c.Reason == "" {
			return usagef("a denial needs a reason: the model reads it")
		}
		return d.answer(q, said{verdict: messages.VerdictDeny, reason: c.Reason}, c.json())
	})
}

type approvalsEditCmd struct {
	bureau
	signs
	ID     string `arg:"" optional:"" help:"The question's id, or its beginning. Default: the only one that is open."`
	Input  string `placeholder:"JSON" help:"All of the new arguments. Without them $EDITOR is opened on a terminal."`
	Reason string `placeholder:"TEXT" help:"Why. It is kept with the decision."`
	Ticket string `placeholder:"TEXT" help:"The ticket that a critical call needs."`
	Yes    bool   `help:"Do not ask. Needed without a terminal, and then with an ID and --input."`
}

// Help is shown below the command's usage.
func (approvalsEditCmd) Help() string {
	return `The new arguments have to fit the tool, and the policy looks at them again. What was asked at first is kept beside them.
Where two people have to agree, an edit counts as yours, and the other one agrees to the new arguments.`
}

func (c approvalsEditCmd) Run(a *app) error {
	return withClient(a, withKey, func(d *desk) error {
		q, person, err := d.pick(c.ID, c.Yes)
		if err != nil {
			return err
		}
		if person == nil && c.Input == "" {
			return usagef("there is no terminal for an editor: give the new arguments with --input")
		}
		s := said{verdict: messages.VerdictEdit, input: json.RawMessage(c.Input), reason: c.Reason, ticket: c.Ticket}
		if person != nil {
			a.say("%s", shown(a.stderr, q))
		}
		if c.Input == "" {
			if s.input, err = editArguments(a.ctx, person, q.Input); err != nil {
				return err
			}
		}
		if err := newArguments(q.Input, s.input); err != nil {
			return usage(err)
		}
		if person != nil {
			a.say("%s", wrapped(difference(jsonText(q.Input), jsonText(s.input), colours(a.stderr)), columns(a.stderr)))
			if s.ticket, err = askTicket(a.ctx, person, q, s); err != nil {
				return err
			}
			if err := agreesTo(person.yes(a.ctx, "approve these arguments?")); err != nil {
				return err
			}
		}
		return d.answer(q, s, c.json())
	})
}

// leastID is the shortest id, in characters, that a command takes when it does not show the
// question first.
const leastID = 8

// pick returns the question that an id means, and the person to ask about it. The person is nil if
// yes is set: then nothing is asked, and the id must have at least leastID characters.
func (d *desk) pick(id string, yes bool) (messages.Approval, *person, error) {
	var someone *person
	if !yes {
		if someone = promptAt(d.app.stdin, d.app.stderr); someone == nil {
			said := "--yes"
			if d.app.command == "approvals deny" {
				said = "--reason TEXT"
			}
			return messages.Approval{}, nil, usagef("there is no terminal to ask at: look at the question with `toolfleet approvals show`, then name it and say %s", said)
		}
	} else if len(id) < leastID {
		return messages.Approval{}, nil, usagef("name the question by %d characters of its id or more: nobody is asked whether it is the right one", leastID)
	}
	p, err := d.find(d.app.ctx, id)
	if err != nil {
		return messages.Approval{}, nil, err
	}
	q, err := d.show(d.app.ctx, p)
	return q, someone, err
}

// agreesTo turns a no into an error, so that the command fails and the question stays open.
func agreesTo(yes bool, err error) error {
	if err == nil && !yes {
		err = errors.New("nothing was decided: the question stays open")
	}
	return err
}

// answer hands in a decision and, with -o json, prints the fleet's answer.
func (d *desk) answer(q messages.Approval, s said, asJSON bool) error {
	answer, err := d.decide(d.app.ctx, q, s)
	if err != nil || !asJSON {
		return err
	}
	return d.app.print(answer)
}

type approvalsKeyCmd struct {
	daemon.General
	shape
	As   string `setting:"approver.name" placeholder:"NAME"`
	File string `arg:"" help:"File to write the key to. One that is there already is kept, and its entry is printed."`
}

// Help is shown below the command's usage.
func (approvalsKeyCmd) Help() string {
	return `The file is the approver's own: whoever has it decides in their name. The entry goes into the policy file of the fleet.
The same key can be the person's identity at the NATS server (--nkey).`
}

func (c approvalsKeyCmd) Run(a *app) error {
	cfg, err := a.settings()
	if err != nil {
		return err
	}
	key, made, err := keyIn(c.File)
	if err != nil {
		return err
	}
	about := "was there already"
	if made {
		about = "holds the key: keep it to yourself"
	}
	a.say("%s %s. For the policy file of the fleet:\n", c.File, about)
	name := approverName(cfg)
	if c.json() {
		return a.print(messages.Approver{Name: name, Key: key.Public()})
	}
	_, err = fmt.Fprintf(a.stdout, "approvers:\n  - name: %s\n    key: %s\n", name, key.Public())
	return err
}
