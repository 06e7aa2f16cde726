package httptool

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"

	"github.com/toolfleet/toolfleet/worker/tool"
)

// setIdentity adds headers that say which call a request is about.
func setIdentity(header http.Header, call tool.Call) error {
	for name, value := range map[string]string{
		"Toolfleet-Session":         string(call.Session),
		"Toolfleet-Batch":           string(call.Batch),
		"Toolfleet-Call-Id":         string(call.ID),
		"Toolfleet-Index":           strconv.Itoa(call.Index),
		"Toolfleet-Attempt":         strconv.Itoa(call.Attempt),
		"Toolfleet-Idempotency-Key": call.IdempotencyKey,
		"Toolfleet-Fence":           strconv.FormatUint(call.Fence, 10),
	} {
		// A header cannot carry this id unchanged, and a changed id could name another
		// call.
		if !fits(value) {
			return fmt.Errorf("%s has a value that no header can carry; no request was sent", name)
		}
		header.Set(name, value)
	}
	return nil
}

// fits reports whether a header can carry the value unchanged.
func fits(value string) bool {
	return strings.TrimSpace(value) == value && !strings.ContainsFunc(value, unicode.IsControl)
}
