package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/messages"
)

// request is what a handler knows about an HTTP request: who sends it, its session and batch,
// and its body.
type request struct {
	*http.Request
	who     access.Principal
	client  *client.Client // client of the sender's tenant
	session messages.SessionID
	batch   messages.BatchID
	body    []byte
}

// read reads a request. Only this method finds out the tenant, the principal and the ids.
func (s *Server) read(w http.ResponseWriter, r *http.Request, to route) (*request, error) {
	q := &request{Request: r}
	if !to.open {
		who, err := s.cfg.Access.Who(r)
		if err != nil {
			return nil, asProblem(err)
		}
		q.who, q.client = who, s.clientFor(who)
	}
	session, err := idIn(r, "session")
	if err != nil {
		return nil, err
	}
	batch, err := idIn(r, "batch")
	if err != nil {
		return nil, err
	}
	q.session, q.batch = messages.SessionID(session), messages.BatchID(batch)
	limit := to.body
	if limit == wholeBatch {
		limit = int64(q.client.MaxBatch())
	}
	if r.ContentLength != 0 {
		release, err := s.reading.take()
		if err != nil {
			return nil, err
		}
		defer release()
	}
	q.body, err = readBody(w, r, limit)
	return q, err
}

// errExpired ends a waiting request when the token of its principal expires.
var errExpired = newProblem(http.StatusUnauthorized, "unauthorized", "the token has expired; get a new one")

// checkEvery is how long a request may continue after its principal has lost the right to send
// it.
const checkEvery = 10 * time.Second

// whileAllowed ends the context of a request when its principal loses the right to send it.
// The token may have expired, may have been revoked, or may now have another owner.
func (s *Server) whileAllowed(q *request) (stop func()) {
	ctx, end := context.WithCancelCause(q.Context())
	expires := func() {}
	if !q.who.Expires.IsZero() {
		ctx, expires = context.WithDeadlineCause(ctx, q.who.Expires, errExpired)
	}
	again := q.Clone(ctx) // a copy, because the handler may change the request
	var check func()
	check = func() {
		who, err := s.cfg.Access.Who(again)
		var denied *access.Denied
		switch {
		case ctx.Err() != nil:
		case errors.As(err, &denied):
			end(asProblem(err))
		case err == nil && (who.Tenant != q.who.Tenant || who.User != q.who.User):
			end(errChanged)
		default:
			time.AfterFunc(checkEvery, check)
		}
	}
	first := time.AfterFunc(checkEvery, check)
	q.Request = q.WithContext(ctx)
	return func() { first.Stop(); expires(); end(nil) }
}

// errChanged ends a request whose token now belongs to another principal.
var errChanged = newProblem(http.StatusUnauthorized, "unauthorized", "the token has another owner now; ask again")

// asProblem turns an [access.Denied] into the problem that the client gets: 403 for a foreign
// host, and 401 otherwise. It returns any other error unchanged.
func asProblem(err error) error {
	var denied *access.Denied
	if !errors.As(err, &denied) {
		return err
	}
	if denied.Foreign {
		return newProblem(http.StatusForbidden, "foreign_host", denied.Message)
	}
	return newProblem(http.StatusUnauthorized, "unauthorized", denied.Message)
}

// idIn returns an id from the path, decoded. It returns "" if the path has no id of this name.
// An id must be UTF-8, because JSON messages have it too.
func idIn(r *http.Request, name string) (string, error) {
	id := r.PathValue(name)
	switch {
	case !utf8.ValidString(id):
		return "", newProblem(http.StatusUnprocessableEntity, "invalid_id", "the "+name+" id in the path is not UTF-8")
	case len(id) > messages.MaxID:
		return "", newProblem(http.StatusRequestEntityTooLarge, string(messages.ClassTooLarge),
			"the "+name+" id has "+strconv.Itoa(len(id))+" bytes; the limit is "+strconv.Itoa(messages.MaxID))
	}
	return id, nil
}

// readBody reads a body of at most limit bytes. [receiving] limits the time for it, and
// handles bytes that are not read.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var over *http.MaxBytesError
	switch {
	case err == nil:
		// The body is read. A later read only serves to notice that the client is gone.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return body, nil
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	}
	w.Header().Set("Connection", "close")
	return nil, newProblem(http.StatusRequestTimeout, "incomplete_body", "the body did not arrive in full and in time")
}

func tooLarge(limit int64) error {
	message := "the body is too large; the limit is " + strconv.FormatInt(limit, 10) + " bytes"
	if limit == 0 {
		message = "this request takes no body"
	}
	return newProblem(http.StatusRequestEntityTooLarge, string(messages.ClassTooLarge), message)
}

// maxWait limits the wait that a client may ask for.
const maxWait = time.Hour

// wait returns how long the client wants to wait, from the header "Prefer: wait=N" in seconds.
// ok is false without this header.
func (q *request) wait() (d time.Duration, ok bool) {
	for _, header := range q.Header.Values("Prefer") {
		for preference := range strings.SplitSeq(header, ",") {
			name, value, _ := strings.Cut(preference, "=")
			n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
			if strings.EqualFold(strings.TrimSpace(name), "wait") && err == nil {
				return min(time.Duration(n)*time.Second, maxWait), true
			}
		}
	}
	return 0, false
}

// wantsEvents reports whether the client asks for a stream of events.
func (q *request) wantsEvents() bool {
	return strings.Contains(q.Header.Get("Accept"), "text/event-stream")
}

// clientFor returns a client of a tenant. Its batches say which user asks.
func (s *Server) clientFor(who access.Principal) *client.Client {
	c := s.clientOf(who.Tenant)
	if s.cfg.Signer == nil || who.User == "" {
		return c
	}
	return c.OnBehalf(func(digest string) string {
		statement, err := s.cfg.Signer.Sign(digest, messages.Principal{Tenant: messages.TenantID(who.Tenant), User: who.User})
		if err != nil {
			s.log.Warn("who asks for a batch cannot be signed; the fleet knows only its tenant", "err", err)
		}
		return statement
	})
}
