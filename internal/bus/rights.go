package bus

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
)

// turnedAway reports whether the connection has come to its end because the server did not let this user in again.
func (c *Conn) turnedAway() bool {
	err := c.nc.LastError()
	return c.nc.IsClosed() && (errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked))
}

// errNotOurs: a stream is missing that this user may not make. Somebody who may is waited for.
var errNotOurs = errors.New("is not there, and this user may not make it; a coordinator does when it starts")

// may reports whether this user may publish to a subject. A server that does not say lets us try.
func (c *Conn) may(ctx context.Context, subject string) bool {
	var user struct {
		Data struct {
			Permissions struct {
				Publish struct {
					Allow []string `json:"allow"`
					Deny  []string `json:"deny"`
				} `json:"publish"`
			} `json:"permissions"`
		} `json:"data"`
	}
	if err := c.call(ctx, "$SYS.REQ.USER.INFO", struct{}{}, &user); err != nil {
		return true
	}
	rights := user.Data.Permissions.Publish
	return (len(rights.Allow) == 0 || anyMatches(rights.Allow, subject)) && !anyMatches(rights.Deny, subject)
}

func anyMatches(patterns []string, subject string) bool {
	for _, p := range patterns {
		if matches(p, subject) {
			return true
		}
	}
	return false
}

// matches is how the server matches a subject without wildcards.
func matches(pattern, subject string) bool {
	tokens := strings.Split(subject, ".")
	for i, p := range strings.Split(pattern, ".") {
		switch {
		case p == ">":
			return len(tokens) > i
		case i >= len(tokens), p != "*" && p != tokens[i]:
			return false
		}
	}
	return len(tokens) == strings.Count(pattern, ".")+1
}
