package approval

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// May returns the sorted names of the people who can still decide about a question at a time.
// Their keys must be valid, and their scopes must cover the tenant and the tool of the
// question. The requester and the people who have agreed are left out.
func (a Approvers) May(p messages.Pending, at time.Time) (names []string) {
	asks := messages.Approval{Requester: p.Requester, User: p.User}
	for _, name := range a.entitledTo(p.Tenant, p.Tool, at) {
		if !a.own(asks, messages.Decision{By: name}) && !slices.Contains(p.Agreed, name) {
			names = append(names, name)
		}
	}
	return names
}

// Count returns how many people may decide about calls of a tenant to a tool at a time.
func (a Approvers) Count(tenant messages.TenantID, tool string, at time.Time) int {
	return len(a.entitledTo(tenant, tool, at))
}

func (a Approvers) entitledTo(tenant messages.TenantID, tool string, at time.Time) (names []string) {
	for name := range a.byName {
		if a.entitled(messages.Decision{By: name, Tenant: tenant, Tool: tool}, at) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// entitled returns why the author of a decision may not decide about its tenant and tool at a
// time, or nil.
func (a Approvers) entitled(d messages.Decision, at time.Time) *messages.Refusal {
	p := a.byName[d.By]
	if !p.Expires.IsZero() && !at.Before(p.Expires) {
		return refuse(messages.ClassKeyExpired, "The key of %s counted until %s.", d.By, p.Expires.UTC().Format(time.RFC3339))
	}
	if len(p.Scopes) == 0 || slices.ContainsFunc(p.Scopes, func(s messages.Scope) bool { return covers(s, d.Tenant, d.Tool) }) {
		return nil
	}
	var groups []string
	for _, s := range p.Scopes {
		groups = append(groups, s.Group)
	}
	return refuse(messages.ClassOutOfScope, "%s may not decide about %s of the tenant %s: the policy has %s in %s, and not for that.",
		d.By, d.Tool, d.Tenant, d.By, strings.Join(groups, ", "))
}

// covers reports whether a scope covers a tenant and a tool.
func covers(s messages.Scope, tenant messages.TenantID, tool string) bool {
	matches := func(pattern string) bool {
		ok, err := path.Match(pattern, tool)
		return ok && err == nil
	}
	return (len(s.Tenants) == 0 || slices.Contains(s.Tenants, string(tenant))) && (len(s.Tools) == 0 || slices.ContainsFunc(s.Tools, matches))
}
