package bus_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// restricted returns the URL of a server as an operator would run it, with one user who has
// few rights.
func restricted(t *testing.T) string {
	t.Helper()
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		Users: []*server.User{{
			Username: "agent", Password: "secret",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"forbidden"}}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(30 * time.Second) {
		t.Fatal("not ready")
	}
	return srv.ClientURL()
}
