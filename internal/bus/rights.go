package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
)

// May reports whether this user may publish to a subject. It returns true if the server does
// not answer the question.
func (c *Conn) May(ctx context.Context, subject string) bool {
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
	if err := c.Call(ctx, "$SYS.REQ.USER.INFO", struct{}{}, &user); err != nil {
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

// matches reports whether pattern matches a subject without wildcards. The rules are the
// server's.
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

// errDeaf: this user may not subscribe to its own inbox, so no answer would reach it.
var errDeaf = errors.New("this user may not hear answers")

// hears checks that this user may subscribe to its own inbox. If not, it closes the connection
// and returns an error. The server sends a refusal before it answers the ping of the flush. If
// the connection is lost meanwhile, hears returns nil.
func (c *Conn) hears(ctx context.Context) error {
	inbox := c.nc.NewInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return nil
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return nil
	}
	if err := c.nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		c.nc.Close()
		return fmt.Errorf("%w at %s: %w", errDeaf, inbox[:strings.LastIndexByte(inbox, '.')+1]+">", err)
	}
	return nil
}
