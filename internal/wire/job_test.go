package wire

import (
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// The key has the bytes that reflection would give: keys outlive an update of a worker.
func TestIdempotencyKeysStayAsTheyAre(t *testing.T) {
	for _, odd := range []string{"", "plain", "a\"b\\c\n\t\x00\x7f", "é世界\u2028<&>", "\xff\xfe", strings.Repeat("x", 300)} {
		for _, index := range []int{0, 7, 1 << 40, -1} {
			j := Job{
				Tenant: messages.TenantID(odd), Session: messages.SessionID("s" + odd), Batch: messages.BatchID(odd + "b"), Index: index,
				CallID: messages.CallID(odd), Tool: "t" + odd,
			}
			want := messages.Digest(rawjson.MustMarshal([]any{j.Tenant, j.Session, j.Batch, j.Index, j.CallID, j.Tool, odd}))
			if got := j.IdempotencyKey(odd); got != want {
				t.Errorf("%q %d: key %s, want %s", odd, index, got, want)
			}
		}
	}
}
