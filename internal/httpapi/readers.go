package httpapi

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// readers has the readers of this server, one for each session that has streams. A session
// gets another reader when a client comes from another server and needs older events than the
// first reader has.
type readers struct {
	closing context.Context // ends when the server stops
	running sync.WaitGroup

	mu   sync.Mutex
	all  map[sessionKey][]*reader // the newest last; guarded by mu
	most int                      // the most readers that one tenant may have; guarded by mu
}

// maxReaders limits the readers of a tenant. A reader keeps the events of its session, so
// without the limit one tenant could use up the memory of the server.
const maxReaders = 512

type sessionKey struct {
	tenant  string
	session messages.SessionID
}

// join returns the place of a stream in a reader that has the events for the stream. The
// caller must call leave. The error says that the tenant has as many readers as it may have.
func (rs *readers) join(q *request, p position, resume bool) (at place, leave func(), err error) {
	if at, leave, err = rs.enter(q, p, resume); err != nil {
		return at, leave, err
	}
	select {
	case <-at.begun:
	case <-q.Context().Done():
	}
	return at, leave, nil
}

func (rs *readers) enter(q *request, p position, resume bool) (at place, leave func(), err error) {
	key := sessionKey{q.who.Tenant, q.session}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range slices.Backward(rs.all[key]) {
		if at, ok := r.place(p, resume); ok {
			return at, rs.use(key, r), nil
		}
	}
	if !rs.room(key.tenant) {
		return at, nil, newProblem(http.StatusTooManyRequests, "busy",
			"this tenant streams as many sessions of this server as one tenant may").retryIn(time.Second)
	}
	var since time.Time
	if resume {
		since = p.since()
	}
	r := newReader(since)
	ctx, cancel := context.WithCancel(rs.closing)
	r.stop = cancel
	if rs.all == nil {
		rs.all = map[sessionKey][]*reader{}
	}
	rs.all[key] = append(rs.all[key], r)
	rs.running.Go(func() {
		r.run(ctx, q.client, q.session)
		rs.remove(key, r)
	})
	at, _ = r.place(p, resume) // a new reader has everything that this stream needs
	return at, rs.use(key, r), nil
}

// room reports whether the tenant may have another reader. If the tenant has the most that it
// may have, room stops a reader without streams. The caller holds mu.
func (rs *readers) room(tenant string) bool {
	count, idle := 0, (*reader)(nil)
	var idleKey sessionKey
	for key, some := range rs.all {
		if key.tenant != tenant {
			continue
		}
		count += len(some)
		for _, r := range some {
			if r.users == 0 {
				idle, idleKey = r, key
			}
		}
	}
	if count < rs.most {
		return true
	}
	if idle == nil {
		return false
	}
	rs.forget(idleKey, idle)
	idle.stop()
	return true
}

// use counts a stream of a reader until leave is called. linger after its last stream has
// left, the reader stops. The caller holds mu.
func (rs *readers) use(key sessionKey, r *reader) (leave func()) {
	r.users++
	return func() {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		if r.users--; r.users == 0 {
			time.AfterFunc(linger, func() { rs.stopUnused(key, r) })
		}
	}
}

func (rs *readers) stopUnused(key sessionKey, r *reader) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r.users == 0 {
		rs.forget(key, r)
		r.stop()
	}
}

func (rs *readers) remove(key sessionKey, r *reader) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.forget(key, r)
	r.stop()
}

// forget removes a reader from the map. The caller holds mu.
func (rs *readers) forget(key sessionKey, r *reader) {
	rs.all[key] = slices.DeleteFunc(rs.all[key], func(other *reader) bool { return other == r })
	if len(rs.all[key]) == 0 {
		delete(rs.all, key)
	}
}
