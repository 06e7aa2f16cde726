package bus

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestErrorsNameNoSecrets(t *testing.T) {
	for _, url := range []string{
		"nats://user:hunter2@127.0.0.1:1", "nats://hunter2@127.0.0.1:1", "nats://u:hunter2@127.0.0.1:1,nats://v:hunter2@127.0.0.1:2",
		"nats://user:hunter2%zz@127.0.0.1:1", "nats://user:p@hunter2@127.0.0.1:1",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := Connect(ctx, Options{URL: url, Timeout: 50 * time.Millisecond})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("connect to %s says: %v", url, err)
		}
	}
}
