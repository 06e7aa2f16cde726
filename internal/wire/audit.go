package wire

import (
	"cmp"

	"github.com/toolfleet/toolfleet/messages"
)

// AuditLines holds several audit lines in one message: those of all calls of a batch,
// stored before the batch leaves the log. If they do not fit into one message, each of
// several messages has a part.
type AuditLines struct {
	V int `json:"v"`
	// Token is the batch's id in the form for subjects. Seq is its sequence in the log, by
	// which it differs from a later batch with the same id.
	Token string `json:"token"`
	Seq   uint64 `json:"seq"`
	// About holds the members that all lines share, so that they are written only once:
	// tenant, session, batch, digest, provider, round, accepted, trace and writer.
	About messages.AuditRecord `json:"about"`
	// Earlier lists the calls whose lines are in earlier parts. So the newest part alone
	// shows which lines are stored.
	Earlier []int `json:"earlier,omitempty"`
	// Last says that this is the last part, so that all lines of the batch are stored.
	Last  bool                   `json:"last,omitempty"`
	Lines []messages.AuditRecord `json:"lines"`
}

// Whole returns the lines with their common members filled in.
func (a AuditLines) Whole() []messages.AuditRecord {
	lines := make([]messages.AuditRecord, len(a.Lines))
	for i, l := range a.Lines {
		l.Tenant, l.Session, l.Batch = cmp.Or(l.Tenant, a.About.Tenant), cmp.Or(l.Session, a.About.Session), cmp.Or(l.Batch, a.About.Batch)
		l.Digest, l.Provider, l.Round = cmp.Or(l.Digest, a.About.Digest), cmp.Or(l.Provider, a.About.Provider), cmp.Or(l.Round, a.About.Round)
		l.TraceID, l.Writer = cmp.Or(l.TraceID, a.About.TraceID), cmp.Or(l.Writer, a.About.Writer)
		l.Principal = cmp.Or(l.Principal, a.About.Principal)
		if l.Labels == nil {
			l.Labels = a.About.Labels
		}
		if l.Accepted.IsZero() {
			l.Accepted = a.About.Accepted
		}
		lines[i] = l
	}
	return lines
}
