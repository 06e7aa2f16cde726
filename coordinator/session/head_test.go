package session_test

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/session"
)

func TestAHeadWithItsReplyIsLeftToItsDriverAtFirst(t *testing.T) {
	for _, c := range []struct {
		about        string
		settled, age time.Duration
		driven, want bool
	}{
		{"who drives the next batch does not wait", 0, 0, true, true},
		{"a new reply", time.Second, time.Millisecond, false, false},
		{"an old one", time.Second, time.Second, false, true},
		{"an old one, driven here", time.Second, time.Hour, true, false},
	} {
		if got := session.RemovesHead(c.settled, c.driven, c.age); got != c.want {
			t.Errorf("%s: removed %v, want %v", c.about, got, c.want)
		}
	}
}

func TestAnOldHeadMayHaveNoDriver(t *testing.T) {
	const ackWait = 30 * time.Second
	for age, want := range map[time.Duration]bool{0: false, session.MaxSuspend + ackWait: false, session.MaxSuspend + 2*ackWait: true} {
		if got := session.Unattended(age, ackWait); got != want {
			t.Errorf("a head of %v: %v, want %v", age, got, want)
		}
	}
}

func TestASuspendedBatchComesBack(t *testing.T) {
	now := time.Now()
	for left, want := range map[time.Duration]time.Duration{
		-time.Hour: 100 * time.Millisecond, time.Minute: time.Minute, 24 * time.Hour: session.MaxSuspend,
	} {
		if got := session.PutOff(now, now.Add(left)); got != want {
			t.Errorf("%v before the question expires: %v, want %v", left, got, want)
		}
	}
}
