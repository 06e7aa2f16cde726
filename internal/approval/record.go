package approval

import "github.com/toolfleet/toolfleet/messages"

// Permission returns what people have decided about a call, in the form of results and audit
// lines.
func Permission(q messages.Approval, effect string) *messages.Permission {
	p := &messages.Permission{
		Effect: effect, Source: messages.SourcePerson, Rule: q.Rule, Tier: q.Tier, Policy: q.Policy, Approval: q.ID, Edited: q.Original != nil,
	}
	for _, d := range q.Decisions {
		p.By = append(p.By, d.By)
		if d.Ticket != "" {
			p.Ticket = d.Ticket
		}
	}
	return p
}

// WithoutArguments returns a copy of a question without its arguments. The record that ends
// the call has the question in this form, because earlier records have the arguments.
func WithoutArguments(q messages.Approval) *messages.Approval {
	q.Input = nil
	if q.Original != nil {
		q.Original = &messages.Arguments{ArgsHash: q.Original.ArgsHash}
	}
	decisions := q.Decisions
	q.Decisions = nil
	for _, d := range decisions {
		d.Input = nil
		q.Decisions = append(q.Decisions, d)
	}
	return &q
}
