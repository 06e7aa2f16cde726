// Package approvals is "toolfleet approvals": it lists, shows and answers the calls that wait for a
// person. "toolfleet run" uses the same prompt, see Prompter.
//
// A person reads the approval view and decides; the signed decision covers exactly what the
// view has shown. The commands neither show nor answer a question that does not match its own
// id.
package approvals

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/messages"
)

// Cmd is "toolfleet approvals".
type Cmd struct {
	Ls      lsCmd      `cmd:"" help:"List the open questions, the most urgent first."`
	Show    showCmd    `cmd:"" help:"Show a question, with all of its arguments."`
	Approve approveCmd `cmd:"" help:"Let the call run, with exactly the arguments that are shown."`
	Deny    denyCmd    `cmd:"" help:"Never let the call run. The model reads why."`
	Edit    editCmd    `cmd:"" help:"Let the call run with other arguments. The model is told."`
	Watch   watchCmd   `cmd:"" help:"Wait for questions; on a terminal, with a key, answer them one after the other."`
	Key     keyCmd     `cmd:"" help:"Make a key to sign decisions with, and print the policy's entry for it."`
}

// Help returns the text that --help shows below the command's usage.
func (Cmd) Help() string {
	return `A call that needs a person's approval waits for an answer, at most for approval_ttl. The first characters of an id are enough if
no other open question's id begins with them. Decisions are signed with the key of an approver whom the policy names.`
}

// questionFlags holds the flags of the approvals commands that connect to the fleet: all
// except "key".
type questionFlags struct {
	daemon.Server
	command.OutputFlags
	Tenant string `setting:"tenant" placeholder:"TOKEN" help:"Tenant whose calls wait, if not that of the settings: _ in a fleet with one tenant [$$TOOLFLEET_TENANT]."`
}

// keyFlags holds the flags of the commands that decide: the approver's key and name.
type keyFlags struct {
	Key string `setting:"approver.key" placeholder:"FILE"`
	As  string `setting:"approver.name" placeholder:"NAME"`
}

type lsCmd struct{ questionFlags }

func (c lsCmd) Run(a *command.App) error {
	return withClient(a, readOnly, func(d *approvalClient) error {
		list, err := d.open(a.Ctx)
		if err != nil {
			return err
		}
		if c.JSON() {
			return a.Print(messages.PendingList{V: messages.Version, Pending: append([]messages.Pending{}, list...)})
		}
		if len(list) == 0 {
			a.Say("%s", d.nothingOpen())
			return nil
		}
		rows := pendingRows(list, time.Now())
		if f, ok := a.Stdout.(*os.File); ok && terminal.IsTerminal(f) {
			if width, _, err := term.GetSize(int(f.Fd())); err == nil {
				rows = terminal.Fit(rows, width, "AGE", "MAY ANSWER", "ASKED BY", "AGREED")
			}
		}
		return a.Table(rows)
	})
}

// pendingRows returns a header and one table row per open question.
func pendingRows(list []messages.Pending, now time.Time) [][]string {
	rows := [][]string{{"ID", "TIER", "AGE", "EXPIRES IN", "ASKED BY", "AGREED", "MAY ANSWER", "CALL"}}
	ids := shortIDs(list)
	for i, p := range list {
		rows = append(rows, []string{
			ids[i], terminal.Clean(string(p.Tier), 20), terminal.Span(now.Sub(p.Asked)), terminal.Span(p.Expires.Sub(now)), terminal.Clean(p.Requester+"/"+string(p.Session), 40),
			fmt.Sprintf("%d of %d", len(p.Agreed), p.Approvers), cmp.Or(terminal.Clean(strings.Join(p.MayAnswer, ", "), 60), "-"), terminal.Clean(p.Line, 160),
		})
	}
	return rows
}

type showCmd struct {
	questionFlags
	ID string `arg:"" optional:"" help:"The question's id, or its beginning. Default: the only one that is open."`
}

func (c showCmd) Run(a *command.App) error {
	return withClient(a, readOnly, func(d *approvalClient) error {
		p, err := d.find(a.Ctx, c.ID)
		if err != nil {
			return err
		}
		q, err := d.show(a.Ctx, p)
		if err != nil {
			return err
		}
		if c.JSON() {
			return a.Print(q)
		}
		text := shown(a.Stdout, q)
		if len(p.MayAnswer) > 0 {
			text += fmt.Sprintf("\nMay answer: %s\n", terminal.Clean(strings.Join(p.MayAnswer, ", "), 1000))
		}
		_, err = fmt.Fprint(a.Stdout, text)
		return err
	})
}

type approveCmd struct {
	questionFlags
	keyFlags
	ID     string `arg:"" optional:"" help:"The question's id, or its beginning. Default: the only one that is open."`
	Ticket string `placeholder:"TEXT" help:"The ticket that a critical call needs."`
	Yes    bool   `help:"Do not ask. Needed without a terminal, and then with an ID."`
}

func (c approveCmd) Run(a *command.App) error {
	return withClient(a, withKey, func(d *approvalClient) error {
		q, prompt, err := d.pick(c.ID, c.Yes)
		if err != nil {
			return err
		}
		s := decision{verdict: messages.VerdictApprove, ticket: c.Ticket}
		if prompt != nil {
			a.Say("%s", shown(a.Stderr, q))
			if s.ticket, err = askTicket(a.Ctx, prompt, q, s); err != nil {
				return err
			}
			if err := agreesTo(prompt.Confirm(a.Ctx, "approve?")); err != nil {
				return err
			}
		}
		return d.answer(q, s, c.JSON())
	})
}

type denyCmd struct {
	questionFlags
	keyFlags
	ID     string `arg:"" optional:"" help:"The question's id, or its beginning. Default: the only one that is open."`
	Reason string `placeholder:"TEXT" help:"Why. The model reads it."`
	Yes    bool   `help:"Do not ask. Wants an ID and --reason, which alone says as much."`
}

func (c denyCmd) Run(a *command.App) error {
	return withClient(a, withKey, func(d *approvalClient) error {
		if c.Yes && c.Reason == "" {
			return command.Usagef("say why with --reason: the model reads it")
		}
		q, prompt, err := d.pick(c.ID, c.Yes || c.Reason != "")
		if err != nil {
			return err
		}
		if prompt != nil {
			a.Say("%s", shown(a.Stderr, q))
			if c.Reason, err = prompt.Ask(a.Ctx, "why not? The model reads it: "); err != nil {
				return err
			}
		}
		if c.Reason == "" {
			return command.Usagef("a denial needs a reason: the model reads it")
		}
		return d.answer(q, decision{verdict: messages.VerdictDeny, reason: c.Reason}, c.JSON())
	})
}

type editCmd struct {
	questionFlags
	keyFlags
	ID     string `arg:"" optional:"" help:"The question's id, or its beginning. Default: the only one that is open."`
	Input  string `placeholder:"JSON" help:"All of the new arguments. Without them $EDITOR is opened on a terminal."`
	Reason string `placeholder:"TEXT" help:"Why. It is kept with the decision."`
	Ticket string `placeholder:"TEXT" help:"The ticket that a critical call needs."`
	Yes    bool   `help:"Do not ask. Needed without a terminal, and then with an ID and --input."`
}

// Help returns the text that --help shows below the command's usage.
func (editCmd) Help() string {
	return `The new arguments have to fit the tool, and the policy checks them again. The question keeps the original arguments too.
If two people have to approve, an edit counts as your approval, and the other person approves the new arguments.`
}

func (c editCmd) Run(a *command.App) error {
	return withClient(a, withKey, func(d *approvalClient) error {
		q, prompt, err := d.pick(c.ID, c.Yes)
		if err != nil {
			return err
		}
		if prompt == nil && c.Input == "" {
			return command.Usagef("there is no terminal for an editor: give the new arguments with --input")
		}
		s := decision{verdict: messages.VerdictEdit, input: json.RawMessage(c.Input), reason: c.Reason, ticket: c.Ticket}
		if prompt != nil {
			a.Say("%s", shown(a.Stderr, q))
		}
		if c.Input == "" {
			if s.input, err = editArguments(a.Ctx, prompt, q.Input); err != nil {
				return err
			}
		}
		if err := newArguments(q.Input, s.input); err != nil {
			return command.Usage(err)
		}
		if prompt != nil {
			a.Say("%s", terminal.Wrap(terminal.Diff(terminal.JSONText(q.Input), terminal.JSONText(s.input), terminal.Colours(a.Stderr)), terminal.Columns(a.Stderr)))
			if s.ticket, err = askTicket(a.Ctx, prompt, q, s); err != nil {
				return err
			}
			if err := agreesTo(prompt.Confirm(a.Ctx, "approve these arguments?")); err != nil {
				return err
			}
		}
		return d.answer(q, s, c.JSON())
	})
}

// leastID is how many characters of an id a command needs if it does not show the question first.
const leastID = 8

// pick returns the question with an id, and the prompt to ask about it. If yes is set, the
// command asks nothing: the prompt is nil, and the id must have at least leastID characters.
func (d *approvalClient) pick(id string, yes bool) (messages.Approval, *terminal.Prompt, error) {
	var prompt *terminal.Prompt
	if !yes {
		if prompt = terminal.PromptAt(d.app.Stdin, d.app.Stderr); prompt == nil {
			said := "--yes"
			if d.app.Command == "approvals deny" {
				said = "--reason TEXT"
			}
			return messages.Approval{}, nil, command.Usagef("there is no terminal to ask at: look at the question with `toolfleet approvals show`, then name it and say %s", said)
		}
	} else if len(id) < leastID {
		return messages.Approval{}, nil, command.Usagef("name the question by %d characters of its id or more: nobody is asked whether it is the right one", leastID)
	}
	p, err := d.find(d.app.Ctx, id)
	if err != nil {
		return messages.Approval{}, nil, err
	}
	q, err := d.show(d.app.Ctx, p)
	return q, prompt, err
}

// agreesTo returns an error if the person said no. The command then fails, and the question
// stays open.
func agreesTo(yes bool, err error) error {
	if err == nil && !yes {
		err = errors.New("nothing was decided: the question stays open")
	}
	return err
}

// answer signs and sends a decision and, with -o json, prints the fleet's answer.
func (d *approvalClient) answer(q messages.Approval, s decision, asJSON bool) error {
	answer, err := d.decide(d.app.Ctx, q, s)
	if err != nil || !asJSON {
		return err
	}
	return d.app.Print(answer)
}

type keyCmd struct {
	daemon.General
	command.OutputFlags
	As   string `setting:"approver.name" placeholder:"NAME"`
	File string `arg:"" help:"File to write the key to. One that is there already is kept, and its entry is printed."`
}

// Help returns the text that --help shows below the command's usage.
func (keyCmd) Help() string {
	return `The file is secret: anybody who has it can decide in the approver's name. The entry goes into the policy file of the fleet.
The same key can be the person's identity at the NATS server (--nkey).`
}

func (c keyCmd) Run(a *command.App) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	key, made, err := ReadOrMakeKey(c.File)
	if err != nil {
		return err
	}
	about := "was there already"
	if made {
		about = "holds the key: keep it to yourself"
	}
	a.Say("%s %s. For the policy file of the fleet:\n", c.File, about)
	name := ApproverName(cfg)
	if c.JSON() {
		return a.Print(messages.Approver{Name: name, Key: key.Public()})
	}
	_, err = fmt.Fprintf(a.Stdout, "approvers:\n  - name: %s\n    key: %s\n", name, key.Public())
	return err
}
