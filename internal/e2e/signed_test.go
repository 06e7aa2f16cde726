package e2e

import (
	"crypto/ed25519"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// A program signs a decision as docs/approvals.md describes, without code of this project. The
// coordinator accepts the decision, the worker checks and accepts it once more, and `audit
// --policy` verifies it.
func TestADecisionSignedAsDocumented(t *testing.T) {
	const unknown = `"approval":`
	for _, row := range []struct {
		name string
		// signed changes the canonical form that is signed. sent changes the decision that is
		// sent.
		signed, sent *strings.Replacer
		want         messages.Class // "" means that it is accepted
	}{
		{name: "as documented"},
		{name: "in another order, with white space", sent: strings.NewReplacer(`{`, "{ \"verdict\" : \"approve\" ,\n", `,"verdict":"approve"`, "")},
		{name: "with an empty sig, as older versions sign", signed: strings.NewReplacer(`"tenant":`, `"sig":"","tenant":`)},
		{name: "with an unknown member that is not signed", sent: strings.NewReplacer(unknown, `"amount_limit":50,`+unknown)},
		{name: "with an unknown member that is signed", signed: strings.NewReplacer(unknown, `"amount_limit":50,`+unknown),
			sent: strings.NewReplacer(unknown, `"amount_limit":50,`+unknown), want: messages.ClassBadSignature},
		{name: "with HTML escapes", signed: strings.NewReplacer("&", `\u0026`), want: messages.ClassBadSignature},
	} {
		t.Run(row.name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				public, private, err := ed25519.GenerateKey(nil)
				if err != nil {
					t.Fatal(err)
				}
				key := nkeyOf(public)
				approvers, err := approval.NewApprovers([]messages.Approver{{Name: "alice", Key: key}})
				if err != nil {
					t.Fatal(err)
				}
				f := newFleet(t, srv)
				defer f.close()
				p := people{approvers: approvers}
				ledger := f.addBankTools()
				f.worker(p.worker(t, refunds))
				f.coordinator(p.coordinator())
				b := canonical("s", "b", refund("149.99"))
				f.submit(b)
				q := f.question(b, 0)

				form := f.documentedApproval(b, key)
				signed, sent := form, form
				if row.signed != nil {
					signed = row.signed.Replace(form)
				}
				if row.sent != nil {
					sent = row.sent.Replace(form)
				}
				sig := base64.RawURLEncoding.EncodeToString(ed25519.Sign(private, []byte("toolfleet decision v1\n"+signed)))
				answer := f.decideRaw(b, strings.TrimSuffix(sent, "}")+`,"sig":"`+sig+`"}`)

				if row.want != "" {
					if answer.OK || answer.Error == nil || answer.Error.Class != row.want || len(ledger.all()) != 0 {
						t.Fatalf("answered %+v, %+v, ran %d times; want a refusal of the class %s", answer, answer.Error, len(ledger.all()), row.want)
					}
					return
				}
				if !answer.OK || answer.State != messages.DecisionGranted {
					t.Fatalf("signed %s\nsent %s\nanswered %+v, %+v; want granted", signed, sent, answer, answer.Error)
				}
				f.wantStatuses(f.reply(b, time.Minute), "ok")
				if n := len(ledger.all()); n != 1 {
					t.Errorf("refunded %d times", n)
				}
				if _, state, refused := approvers.Take(q, f.firstDecision(), q.Asked); refused != nil || state != messages.DecisionGranted {
					t.Errorf("the decision in the audit log is %q, %v", state, refused)
				}
			})
		})
	}
}

// documentedApproval returns an approval of the only call of a batch in canonical form,
// without sig. The template has the members in the right order.
func (f *fleet) documentedApproval(b messages.Batch, key string) string {
	f.t.Helper()
	m, err := f.conn.Request(f.t.Context(), f.conn.Names().OfCall(wire.VerbShow, wire.KeyOf(messages.OneTenant, b.Session, b.ID).Call(0)), nil, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	var answer struct{ Approval map[string]any }
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		f.t.Fatal(err)
	}
	q := func(name string) string {
		text, _ := answer.Approval[name].(string)
		if text == "" {
			f.t.Fatalf("the question has no %s: %s", name, m.Data)
		}
		return text
	}
	return strings.NewReplacer("ID", q("id"), "ARGS", q("args_hash"), "EXPIRES", q("expires"), "KEY", key, "POLICY", q("policy"), "DIGEST", q("tool_digest")).Replace(
		`{"approval":"ID","args_hash":"ARGS","at":"2026-11-21T09:01:00.5Z","batch":"b","by":"alice","call_id":"c0","expires":"EXPIRES","index":0,` +
			`"key":"KEY","nonce":"n-1","policy":"POLICY","reason":"R&D: <é>","session":"s","tenant":"_","tool":"refund","tool_digest":"DIGEST","v":1,"verdict":"approve"}`)
}

func (f *fleet) decideRaw(b messages.Batch, body string) (answer messages.DecisionAnswer) {
	f.t.Helper()
	m, err := f.conn.Request(f.t.Context(), f.conn.Names().OfCall(wire.VerbDecide, wire.KeyOf(messages.OneTenant, b.Session, b.ID).Call(0)), nil, []byte(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		f.t.Fatal(err)
	}
	return answer
}

// firstDecision returns the first accepted decision in the audit log.
func (f *fleet) firstDecision() messages.Decision {
	f.t.Helper()
	lines, err := f.conn.All(f.t.Context(), f.conn.Names().Stream(bus.Audit), f.conn.Names().All(wire.VerbAudit))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, m := range lines {
		if line, err := openLine(m); err == nil && line.Type == messages.AuditDecided && line.Decision != nil {
			return *line.Decision
		}
	}
	f.t.Fatal("no decision is in the audit log")
	return messages.Decision{}
}

// nkeyOf returns the public nkey of a user: base32 of a prefix byte, the key, and a
// CRC-16/XMODEM with its low byte first.
func nkeyOf(public ed25519.PublicKey) string {
	raw := append([]byte{20 << 3}, public...)
	crc := uint16(0)
	for _, b := range raw {
		crc ^= uint16(b) << 8
		for range 8 {
			high := crc & 0x8000
			if crc <<= 1; high != 0 {
				crc ^= 0x1021
			}
		}
	}
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(append(raw, byte(crc), byte(crc>>8)))
}
