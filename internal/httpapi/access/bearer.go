package access

import (
	"net/http"
	"strings"
	"time"
)

// Bearer accepts requests that have a token.
type Bearer struct {
	Tokens *Tokens // nil: no tokens file
	JWT    *JWT    // nil: no JSON Web Tokens
}

var errExpired = &Denied{Message: "the token has expired; get a new one"}

// Who implements [Control].
func (b Bearer) Who(r *http.Request) (Principal, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Principal{}, &Denied{Message: "this server asks for a token: send the header Authorization: Bearer TOKEN"}
	}
	if b.JWT != nil && !isOurs(token) {
		return b.JWT.Owner(r.Context(), token)
	}
	if b.Tokens != nil {
		if p, known := b.Tokens.Owner(token); known {
			if !p.Expires.IsZero() && !time.Now().Before(p.Expires) {
				return Principal{}, errExpired
			}
			return p, nil
		}
	}
	return Principal{}, &Denied{Message: "this server does not know the token"}
}
