package approvals

import (
	"testing"
	"time"
)

func TestRefusalsAreLimited(t *testing.T) {
	l, now := newRefusalLimiter(), time.Unix(1000, 0)
	count := func(tries int) (allowed, firsts int) {
		for range tries {
			ok, first := l.allow(now)
			if ok {
				allowed++
			}
			if first {
				firsts++
			}
		}
		return allowed, firsts
	}
	for _, step := range []struct {
		after                  time.Duration
		tries, allowed, firsts int
	}{
		{0, 2 * refusalBurst, refusalBurst, 1},
		{10 * time.Second, refusalBurst, 10 * refusalsPerSecond, 0},
		{time.Hour, refusalBurst, refusalBurst, 0},
		{0, 10, 0, 1},
	} {
		now = now.Add(step.after)
		if allowed, firsts := count(step.tries); allowed != step.allowed || firsts != step.firsts {
			t.Errorf("after %v: %d of %d allowed, first refused %d times; want %d and %d", step.after, allowed, step.tries, firsts, step.allowed, step.firsts)
		}
	}
}
