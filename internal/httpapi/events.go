package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// resumeHeader is the header in which a client names the last event that it got.
const resumeHeader = "Last-Event-ID"

// sessionEvents streams the events of a session: first the past events of the open batches,
// then every later event. A client that reconnects with the id of its last event gets the
// events after it, from this server or any other.
func (s *Server) sessionEvents(w http.ResponseWriter, q *request) error {
	last := q.Header.Get(resumeHeader)
	p, resume := parsePosition(last)
	if last != "" && !resume {
		return newProblem(http.StatusUnprocessableEntity, "invalid_event_id", resumeHeader+" is no id of an event of this session; leave it out to begin with what is open")
	}
	return s.stream(w, q, func(q *request, opened func() *stream) error {
		at, leave, err := s.readers.join(q, p, resume)
		if err != nil {
			return err
		}
		defer leave()
		out := opened()
		for {
			events, err := at.next(q.Context())
			if err != nil {
				return err
			}
			for _, k := range events {
				if err := out.send(k.id, k.event.Type, k.data); err != nil {
					return err
				}
			}
		}
	})
}

// liveEvents streams the present events of all sessions of the tenant. An event of type gap
// says that events before it may be missing.
func (s *Server) liveEvents(w http.ResponseWriter, q *request) error {
	return s.stream(w, q, func(q *request, opened func() *stream) error {
		events, leave, err := s.live.join(q)
		if err != nil {
			return err
		}
		defer leave()
		out := opened()
		number := 0
		send := func(e messages.Event) error {
			number++
			return out.send(strconv.Itoa(number), e.Type, rawjson.MustMarshal(e))
		}
		if q.Header.Get(resumeHeader) != "" { // the client reconnects
			if err := send(gap()); err != nil {
				return err
			}
		}
		for {
			select {
			case <-q.Context().Done():
				return context.Cause(q.Context())
			case e, ok := <-events.queue:
				if !ok {
					return errClosing
				}
				if err := send(e); err != nil {
					return err
				}
				if len(events.queue) == 0 && events.missed.Swap(false) {
					if err := send(gap()); err != nil {
						return err
					}
				}
			}
		}
	})
}

func gap() messages.Event {
	return messages.Event{V: messages.Version, Type: messages.EventGap, Index: -1, Time: time.Now()}
}

// stream keeps a stream open until show returns or the client is gone. show must call opened
// when it misses no later event. opened sends the headers, so the client knows that too.
func (s *Server) stream(w http.ResponseWriter, q *request, show func(q *request, opened func() *stream) error) error {
	release, err := s.streams.take()
	if err != nil {
		return err
	}
	defer release()
	defer s.cfg.Metrics.streaming()()
	ctx, lost := withCancel(q)
	defer lost(nil)
	out, stop := newStream(w), func() {}
	defer func() { stop() }()
	own := *q
	own.Request = q.WithContext(ctx)
	err = show(&own, func() *stream {
		if err := out.open(); err != nil {
			lost(err)
		}
		stop = out.heartbeats(lost)
		return out
	})
	if err != nil && out.hasBegun() {
		_ = out.send("", eventError, problemOf(err).body()) // the client may be gone
		return nil
	}
	return err
}
