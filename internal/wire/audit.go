package wire

import (
	"cmp"

	"github.com/toolfleet/toolfleet/messages"
)

// AuditLines has several audit lines in one message: those of all calls of a batch, which are
// stored before the batch leaves the log. If they are too many for one message, each of
// several messages has a part.
type AuditLines struct {
	V int `json:"v"`
	// Token is the batch's id in its form for subjects. Seq is the batch's sequence in the
	// log. A later batch with the same id has another Seq.
	Token string `json:"token"`
	Seq   uint64 `json:"seq"`
	// About has the members that are the same in all lines, so that they are written only
	// once: tenant, session, batch, digest, provider, round, accepted, trace and writer.
	About messages.AuditRecord `json:"about"`
	// Earlier lists the calls whose lines are in earlier parts. So the newest part alone shows
	// which lines are stored.
	Earlier []int `json:"earlier,omitempty"`
	// Last says that this is the last part: all lines of the batch are then stored.
	Last  bool                   `json:"last,omitempty"`
	Lines []messages.AuditRecord `json:"lines"`
}

// Whole returns the lines with the members of About filled in.
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
