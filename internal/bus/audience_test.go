package bus_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// stage is a process that publishes to an audience, and a process that may subscribe.
type stage struct {
	t        *testing.T
	speaker  *bus.Conn
	listener *bus.Conn
	audience *bus.Audience
	heard    []string
	made     int // number of bodies that were made
}

func openStage(t *testing.T, srv *devserver.Server) *stage {
	s := &stage{t: t, speaker: bustest.Connect(t, srv), listener: bustest.Connect(t, srv)}
	s.audience = bus.NewAudience(s.speaker)
	stop, err := s.audience.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	synctest.Wait()
	return s
}

func (s *stage) listen(subject string) (unsubscribe func()) {
	s.t.Helper()
	unsubscribe, err := s.listener.Subscribe(subject, "", func(m bus.Msg) { s.heard = append(s.heard, string(m.Data)) })
	if err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
	return unsubscribe
}

func (s *stage) say(text string) {
	s.t.Helper()
	err := s.audience.Publish("play.a", nil, func() []byte { s.made++; return []byte(text) })
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) sent() uint64 { return s.speaker.JetStream().Conn().Stats().OutMsgs }

// A subscriber that is there before the first message gets every message, at whatever
// intervals they come.
func TestAnAudienceMissesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := openStage(t, srv)
		for round, subject := range []string{"play.a", "play.*", ">"} {
			unsubscribe := s.listen(subject)
			var want []string
			s.heard = nil
			for i := range 300 {
				text := fmt.Sprint(round, " ", i)
				want = append(want, text)
				s.say(text)
				time.Sleep(time.Duration(i%37) * 10 * time.Millisecond)
			}
			synctest.Wait()
			if !slices.Equal(s.heard, want) {
				t.Errorf("%s heard %d of %d", subject, len(s.heard), len(want))
			}
			unsubscribe()
			s.say("nobody") // the next subscriber comes a moment after the last one has left
			time.Sleep(2 * time.Second)
		}
	}, natstest.Fast)
}

// Nobody subscribes: only one message in a while is sent, to find out whether there is a
// subscriber. Bodies of other messages are not even made. A subscriber that comes later gets
// messages from a moment after that.
func TestWithoutAnAudienceLittleIsSaid(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := openStage(t, srv)
		s.say("first")
		synctest.Wait()
		if s.audience.Has("play.a") || !s.audience.Has("play.b") {
			t.Error("the server's report is not about play.a alone")
		}
		before := s.sent()
		for range 1000 {
			s.say("more")
			time.Sleep(10 * time.Millisecond)
		}
		if sent := s.sent() - before; sent > 10 || s.made > 11 {
			t.Errorf("%d messages were sent and %d made in 10 s, want one a second", sent, s.made)
		}
		defer s.listen("play.a")()
		time.Sleep(1001 * time.Millisecond)
		for range 10 {
			s.say("late")
		}
		synctest.Wait()
		if len(s.heard) != 10 {
			t.Errorf("the late subscriber heard %d of 10", len(s.heard))
		}
	}, natstest.Fast)
}

// Another process reported that nobody subscribes, by a clock that is ahead: its report holds
// no longer than one from now.
func TestQuietOfTheFutureEnds(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := openStage(t, srv)
		defer s.listen("play.>")()
		s.audience.Quiet("play.a", time.Now().Add(time.Hour))
		s.say("unheard")
		time.Sleep(1001 * time.Millisecond)
		s.say("heard")
		synctest.Wait()
		if !slices.Equal(s.heard, []string{"heard"}) {
			t.Errorf("heard %q", s.heard)
		}
	}, natstest.Fast)
}

// Another process reported that nobody subscribes: its report holds no longer than a process's
// own.
func TestQuietEnds(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := openStage(t, srv)
		defer s.listen("play.>")()
		s.audience.Quiet("play.a", time.Now().Add(-600*time.Millisecond))
		s.say("unheard")
		time.Sleep(401 * time.Millisecond)
		s.say("heard")
		synctest.Wait()
		if !slices.Equal(s.heard, []string{"heard"}) {
			t.Errorf("heard %q", s.heard)
		}
	}, natstest.Fast)
}
