package wire

import (
	"cmp"

	"github.com/toolfleet/toolfleet/messages"
)

// AuditLines is several lines in one message: those of all calls of a batch, stored together before
// the batch leaves the log. When they do not fit into one message, each message holds a part of
// them.
type AuditLines struct {
	V int `json:"v"`
	// Token is the batch's id as subjects spell it. Seq is its sequence in the log, which
	// distinguishes it from a later batch with the same id.
	Token string `json:"token"`
	Seq   uint64 `json:"seq"`
	// About holds what the lines have in common: tenant, session, batch, digest, provider, round,
	// accepted, trace and writer are written only once, however many calls there are.
	About messages.AuditRecord `json:"about"`
	// Earlier lists the call indices of the lines in the parts before this one, so the newest part
	// tells everything that is stored.
	Earlier []int `json:"earlier,omitempty"`
	// Last says that this is the last part: all lines of the batch are stored.
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
		if l.Accepted.IsZero() {
			l.Accepted = a.About.Accepted
		}
		lines[i] = l
	}
	return lines
}
