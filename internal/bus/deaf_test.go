package bus_test

import (
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// A user may not subscribe to its inbox: the connection fails at once, and the error says what
// to set.
func TestConnectNamesTheInboxPrefix(t *testing.T) {
	ids := natstest.NewIdentities(t)
	srv := natstest.Server(t, natstest.Listening, ids.Option)
	for _, prefix := range []string{"", "_INBOX.coordinator"} {
		conn, err := bus.Connect(t.Context(), bus.Options{URL: srv.URL(), NKey: ids.Seed("worker"), InboxPrefix: prefix})
		if err == nil {
			conn.Close()
			t.Fatalf("a worker listens on %q", prefix)
		}
		for _, want := range []string{"--inbox-prefix", "nats.inbox_prefix", prefix} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	}
	conn, err := bus.Connect(t.Context(), bus.Options{URL: srv.URL(), NKey: ids.Seed("worker"), InboxPrefix: ids.Inbox("worker")})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if _, err := bus.Connect(t.Context(), bus.Options{URL: srv.URL()}); err == nil || !strings.Contains(err.Error(), "--nkey or --creds") {
		t.Errorf("without an identity: %v", err)
	}
}
