package worker_test

import (
	"os"
	"testing"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// serverURL is where the server of the examples listens.
var serverURL string

func TestMain(m *testing.M) {
	srv, err := devserver.Start(devserver.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		panic(err)
	}
	serverURL = srv.URL()
	code := m.Run()
	srv.Shutdown()
	os.Exit(code)
}
