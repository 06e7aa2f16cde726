package session

import (
	"testing"
	"time"
)

func TestDecideSuspend(t *testing.T) {
	now := time.Unix(1000, 0)
	later, earlier := now.Add(time.Second), now.Add(-time.Second)
	for name, tc := range map[string]struct {
		quiet Quiet
		want  SuspendAction
	}{
		"calls run":                        {Quiet{Now: now}, Continue},
		"calls run, although all is known": {Quiet{Now: now, Sure: true, Until: later}, Continue},
		"a record is newer than the read":  {Quiet{Waits: true, Now: now, Until: later}, Ask},
		"all is known":                     {Quiet{Waits: true, Now: now, Until: later, Sure: true}, Suspend},
		"a question expires now":           {Quiet{Waits: true, Now: now, Until: now, Sure: true}, Continue},
		"a question has expired":           {Quiet{Waits: true, Now: now, Until: earlier, Sure: true}, Continue},
	} {
		if got := DecideSuspend(tc.quiet); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestDecideResume(t *testing.T) {
	for name, tc := range map[string]struct {
		seen Suspended
		want ResumeAction
	}{
		"nothing in the log":                   {Suspended{Due: true}, Leave},
		"the head has left the log":            {Suspended{Due: true, First: 7}, Leave},
		"another head":                         {Suspended{Due: true, First: 7, Head: 8}, Leave},
		"the same head":                        {Suspended{Due: true, First: 7, Head: 7}, Resume},
		"seen for the first time":              {Suspended{Due: true, Head: 7}, Resume},
		"nothing is due":                       {Suspended{Head: 7, First: 7}, Leave},
		"nothing is due, and driven elsewhere": {Suspended{Head: 7, First: 7, Elsewhere: true}, Leave},
		"driven elsewhere":                     {Suspended{Due: true, Head: 7, First: 7, Elsewhere: true}, Return},
	} {
		if got := DecideResume(tc.seen); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
