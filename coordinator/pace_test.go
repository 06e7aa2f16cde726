package coordinator

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	var p pace
	const least, most = 200 * time.Millisecond, 3 * time.Second
	wants := func(want time.Duration) {
		t.Helper()
		if got := p.firstPoll(least, most); got != want {
			t.Errorf("the first look comes after %v, want %v; calls wait %v", got, want, p.mean)
		}
	}
	wants(least)
	for range 1000 {
		p.waited(10 * time.Millisecond)
	}
	wants(least)
	for range 1000 {
		p.waited(time.Minute)
	}
	wants(most)
	for range 1000 {
		p.waited(-time.Second) // the clock of the machine may be set back
	}
	wants(least)
}
