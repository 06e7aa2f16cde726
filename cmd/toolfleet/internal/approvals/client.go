package approvals

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/daemon"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// approvalClient is a connection to a fleet's approval handlers, and a key to sign decisions with.
type approvalClient struct {
	app    *command.App
	client *client.Client
	tenant string
	key    approval.Key
	name   string // the approver that the policy names for this key
}

// access says whether a command only reads questions, or also decides with a key.
type access bool

const (
	readOnly access = false
	withKey  access = true
)

// withClient connects to the server and calls do with an approval client. With withKey the client
// has the key and the name of the settings, and a missing key is an error.
func withClient(a *command.App, needs access, do func(*approvalClient) error) error {
	cfg, err := a.Settings()
	if err != nil {
		return err
	}
	d := &approvalClient{app: a, tenant: cfg.Tenant}
	if needs == withKey {
		if d.key, d.name, err = signer(cfg); err != nil {
			return err
		}
	}
	conn, err := a.Connect(cfg, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	d.client = command.ClientOver(conn, cfg.Tenant)
	return do(d)
}

// ApproveCommand returns the command that approves a question from another terminal. The approver
// has an identity of their own, so user and password are taken out of the server's URL.
func ApproveCommand(program string, cfg *config.Config, id string) string {
	words := []string{program, "approvals", "approve", id}
	if url := userinfo.ReplaceAllString(cfg.NATS.URL, "//"); url != "" && url != daemon.AnyServer {
		words = append(words, "--nats", url)
	}
	if cfg.NATS.Prefix != wire.DefaultPrefix {
		words = append(words, "--prefix", cfg.NATS.Prefix)
	}
	if cfg.Tenant != messages.OneTenant {
		words = append(words, "--tenant", cfg.Tenant)
	}
	if KeyFile(cfg) == "" {
		words = append(words, "--key", "FILE")
	}
	return strings.Join(words, " ")
}

var userinfo = regexp.MustCompile(`//[^/@,]*@`)

// open returns the open questions by time of expiry, the next to expire first.
func (d *approvalClient) open(ctx context.Context) ([]messages.Pending, error) {
	list, err := d.client.Approvals(ctx)
	slices.SortStableFunc(list, func(a, b messages.Pending) int {
		return cmp.Or(a.Expires.Compare(b.Expires), cmp.Compare(a.ID, b.ID))
	})
	return list, explainRefusal(err)
}

// find returns the open question whose id begins with id; "" matches every question. It returns an
// error if none or several match.
func (d *approvalClient) find(ctx context.Context, id string) (messages.Pending, error) {
	list, err := d.open(ctx)
	if err != nil {
		return messages.Pending{}, err
	}
	list = slices.DeleteFunc(list, func(p messages.Pending) bool { return !strings.HasPrefix(p.ID, strings.ToLower(id)) })
	switch {
	case len(list) == 1:
		return list[0], nil
	case len(list) > 1 && id == "":
		return messages.Pending{}, command.Usagef("%d questions are open; name one: %s", len(list), some(list))
	case len(list) > 1:
		return messages.Pending{}, command.Usagef("%s is the beginning of %d questions: %s", terminal.Clean(id, 80), len(list), some(list))
	case id == "":
		return messages.Pending{}, errors.New(d.nothingOpen())
	}
	return messages.Pending{}, fmt.Errorf("no open question of tenant %s has an id that begins with %s: it was answered or edited, has expired, or is another tenant's (--tenant); `toolfleet approvals ls` lists what is open",
		terminal.Clean(d.tenant, 64), terminal.Clean(id, 80))
}

// nothingOpen says that the tenant has no open question. It names the tenant, because the
// question that the user wants may be another tenant's.
func (d *approvalClient) nothingOpen() string {
	return fmt.Sprintf("no question of tenant %s is open; --tenant names another", terminal.Clean(d.tenant, 64))
}

// some lists the ids of at most five questions.
func some(list []messages.Pending) string {
	ids := shortIDs(list)
	if len(ids) > 5 {
		ids = append(ids[:5], "...")
	}
	return strings.Join(ids, ", ")
}

// shortIDs returns the first characters of each id: as many as are needed to tell the ids apart,
// and at least terminal.ShortIDLength.
func shortIDs(list []messages.Pending) []string {
	for n := terminal.ShortIDLength; ; n += 4 {
		seen, ids := map[string]bool{}, make([]string, len(list))
		for i, p := range list {
			ids[i] = terminal.Clean(p.ID[:min(n, len(p.ID))], n)
			seen[ids[i]] = true
		}
		if len(seen) == len(list) || n >= 64 {
			return ids
		}
	}
}

// show fetches the whole of an open question. It returns an error if the question does not match
// its own id, or if another question has replaced it.
func (d *approvalClient) show(ctx context.Context, p messages.Pending) (messages.Approval, error) {
	q, err := d.client.Approval(ctx, p.Session, p.Batch, p.Index)
	if err != nil {
		return q, explainRefusal(err)
	}
	if q, err = checked(q); err != nil {
		return q, err
	}
	if q.ID != p.ID {
		return q, fmt.Errorf("the question %s is another one by now, %s: somebody else was faster. Look at it with `toolfleet approvals show %s`", terminal.ShortID(p.ID), terminal.ShortID(q.ID), terminal.ShortID(q.ID))
	}
	return q, nil
}

// decision is a person's decision about a question, before it is signed.
type decision struct {
	verdict        messages.Verdict
	input          json.RawMessage // the new arguments, for an edit
	reason, ticket string
}

// decide signs a decision about q, sends it and prints what became of it. The signature covers
// q as the person saw it: if another question has replaced q, the fleet refuses the decision.
func (d *approvalClient) decide(ctx context.Context, q messages.Approval, s decision) (messages.DecisionAnswer, error) {
	decision := approval.Answer(q, s.verdict, d.name)
	decision.At, decision.Input, decision.Reason, decision.Ticket = time.Now().UTC(), s.input, s.reason, s.ticket
	decision, err := d.key.Sign(decision)
	if err != nil {
		return messages.DecisionAnswer{}, err
	}
	answer, err := d.client.Decide(ctx, decision)
	if err != nil {
		return answer, explainRefusal(err)
	}
	line := q.Line
	if s.verdict == messages.VerdictEdit {
		line = approval.Line(q.Tool, s.input)
	}
	switch {
	case answer.State == messages.DecisionGranted && s.verdict == messages.VerdictEdit:
		d.app.Say("approved with other arguments, which are checked once more before it runs: %s", line)
	case answer.State == messages.DecisionGranted:
		d.app.Say("approved: %s", line)
	case answer.State == messages.DecisionWaiting && s.verdict == messages.VerdictEdit:
		d.app.Say("you agree to these arguments; another person has to agree too: %s", line)
	case answer.State == messages.DecisionWaiting:
		d.app.Say("you agree; another person has to agree too: %s", line)
	default:
		d.app.Say("denied, it will not run: %s", line)
	}
	return answer, nil
}

// explainRefusal adds to a refusal what the approver can do about it.
func explainRefusal(err error) error {
	var r *messages.Refusal
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w; may this identity at the NATS server (--creds, --nkey, --user) answer questions?", err)
	}
	if !errors.As(err, &r) {
		return err
	}
	text := fmt.Sprintf("refused (%s): %s.", terminal.Clean(string(r.Class), 40), strings.TrimSuffix(terminal.Clean(r.Message, 400), "."))
	switch r.Class {
	case messages.ClassNotPending:
		text += " `toolfleet approvals ls` lists what is open"
	case messages.ClassApprovalExpired:
		text += " The model reads that nobody answered, and may ask again"
	case messages.ClassApprovalMismatch:
		text += " Look at it again: `toolfleet approvals ls`, `toolfleet approvals show`"
	case messages.ClassBadSignature:
		text += " Does the fleet's policy name you (--as) with this key (--key)? `toolfleet approvals key FILE --as NAME` prints the entry"
	case messages.ClassSelfApproval:
		text += " Somebody else has to decide"
	case messages.ClassSameApprover:
		text += " `toolfleet approvals show` says who has agreed"
	case messages.ClassTicketMissing:
		text += " Name one with --ticket"
	}
	return errors.New(text)
}
