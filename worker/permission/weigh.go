package permission

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

// Decision says what the rules decide about one call.
type Decision struct {
	Effect Effect
	// Rule is the rule that decided. It is zero if no rule matched and the default decided.
	Rule Rule
	// Matched is true when a rule decided, and false when the default did.
	Matched bool
	// Tier is the highest tier that any layer gives the call. It is "" if only the deny
	// rules were checked.
	Tier messages.Tier
	// Risk is the rule that gives the tier. It is zero if no layer calls the call a risk.
	Risk Rule
	// Policy is the version of the policy.
	Policy string

	err     error // why the rule that decided, or was skipped, could not be evaluated
	skipped Rule  // the allow rule that could not be evaluated, if the default decides
	riskErr error // why the risk rule could not be evaluated
}

// Reason returns why the rules decided so, for the model and for people. It quotes no
// argument.
func (d Decision) Reason() string {
	if d.Matched {
		return ruled(d.Rule, d.err)
	}
	reason := fmt.Sprintf("no rule matches, and the default is %s", d.Effect)
	if d.err != nil {
		reason += "; " + ruled(d.skipped, d.err)
	}
	return reason
}

// ruled names a rule and adds the rule's own reason, or why it could not be evaluated.
func ruled(r Rule, err error) string {
	if err != nil {
		return fmt.Sprintf("the rule %s could not be evaluated: %v", r, err)
	}
	return "the rule: " + r.String() + words(r.Reason)
}

// words returns the reason of a rule or a hook in a form that can follow its name.
func words(reason string) string {
	if reason = strings.TrimRight(reason, ". \t\r\n"); reason == "" {
		return ""
	}
	return ": " + reason
}

// Opinion is the combined opinion of all pre-hooks about a call.
type Opinion struct {
	Opinion string // allow, ask or deny; "": none; any other value denies
	By      string // the name of the hook, or of the tool
	Source  string // hook or tool; "": hook
	Reason  string
}

// Ruling is the final decision, by rules, tiers and hooks.
type Ruling struct {
	messages.Permission
	Approvers int    // how many people have to approve; 0 if the effect is not ask
	Ticket    bool   // one of them has to name a ticket
	Reason    string // why, in words for the model and for people
}

// Weigh returns the ruling on a call. The first line that applies counts:
//
// 1. a deny rule, a default that denies, a hook's deny
// 2. a person whom the tier requires: tier high or critical
// 3. an ask rule, a hook's ask
// 4. a default that asks, unless a hook allows
// 5. an allow rule, a default that allows
//
// An allow rule, or a hook's allow, can thus override only a default that asks. It cannot lift
// a deny, an ask rule, or the need for a person whom the tier requires.
func (d Decision) Weigh(h Opinion) Ruling {
	switch {
	case d.Effect == Deny:
		return d.byRule(Deny)
	case h.Opinion != "" && h.Opinion != string(Allow) && h.Opinion != string(Ask):
		return d.byHook(Deny, h)
	case d.Tier == messages.TierHigh || d.Tier == messages.TierCritical:
		return d.byTier()
	case d.Effect == Ask && d.Matched:
		return d.byRule(Ask)
	case h.Opinion == string(Ask):
		return d.byHook(Ask, h)
	case d.Effect == Ask && h.Opinion == string(Allow):
		return d.byHook(Allow, h)
	}
	return d.byRule(d.Effect)
}

func (d Decision) ruling(e Effect, source string, r Rule, reason string) Ruling {
	out := Ruling{Permission: messages.Permission{
		Effect: string(e), Source: source, Rule: r.Name, Layer: r.Source, Tier: d.Tier, Policy: d.Policy,
	}, Reason: reason}
	if e == Ask {
		out.Approvers = 1
	}
	return out
}

func (d Decision) byRule(e Effect) Ruling {
	source := messages.SourceDefault
	if d.Matched {
		source = messages.SourceRule
	}
	return d.ruling(e, source, d.Rule, d.Reason())
}

func (d Decision) byTier() Ruling {
	reason := fmt.Sprintf("the tier is %s, by %s", d.Tier, d.Risk.place()) + words(d.Risk.Reason)
	if d.riskErr != nil {
		reason = fmt.Sprintf("the tier is %s, because %s could not be evaluated: %v", d.Tier, d.Risk.place(), d.riskErr)
	}
	r := d.ruling(Ask, messages.SourceTier, d.Risk, reason)
	if d.Tier == messages.TierCritical {
		r.Approvers, r.Ticket = 2, true
	}
	return r
}

func (d Decision) byHook(e Effect, h Opinion) Ruling {
	verb := map[Effect]string{Deny: "denies", Ask: "asks", Allow: "allows"}[e]
	source := cmp.Or(h.Source, messages.SourceHook)
	return d.ruling(e, source, Rule{Name: h.By}, "the "+source+" "+h.By+" "+verb+words(h.Reason))
}
