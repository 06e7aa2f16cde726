package telemetry

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestComplaintsAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		log, _ := Logger(&said, "info", "json", false)
		c := &complaints{log: log, hide: strings.NewReplacer()}
		for range 10 * 60 {
			c.complain(errors.New("connection refused"))
			time.Sleep(time.Second)
		}
		if lines := strings.Count(said.String(), "\n"); lines != 10 {
			t.Errorf("%d lines in ten minutes:\n%s", lines, &said)
		}
		if !strings.Contains(said.String(), `"failures_since_last_line":59`) {
			t.Errorf("does not say how many failures it left out:\n%s", &said)
		}
	})
}
