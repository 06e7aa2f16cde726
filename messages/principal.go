package messages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// PrincipalHeader is the header of a batch in which an HTTP server of the fleet says, with its
// signature, which user asks. Coordinators ignore the header from any other sender.
const PrincipalHeader = "Toolfleet-Principal"

// Principal is who asks for a call.
type Principal struct {
	Tenant TenantID `json:"tenant"`
	// User is the owner of the token that an HTTP request came with. "": only the tenant is known.
	User string `json:"user,omitempty"`
}

// Bounds of the labels of a batch. MaxLabelName and MaxLabelValue are in bytes.
const (
	MaxLabels     = 32
	MaxLabelName  = 64
	MaxLabelValue = 256
)

// checkLabels returns what is wrong with the labels of a batch. A name consists of letters, digits
// and the characters _ . - and /; a value is text without control characters.
func checkLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return fmt.Errorf("labels has %d members; the limit is %d", len(labels), MaxLabels)
	}
	for _, name := range rawjson.SortedKeys(labels) {
		value := labels[name]
		switch {
		case name == "" || len(name) > MaxLabelName || strings.ContainsFunc(name, notInLabelName):
			return fmt.Errorf("labels: the name %.80q: want 1 to %d letters, digits and _ . - /", name, MaxLabelName)
		case len(value) > MaxLabelValue:
			return fmt.Errorf("labels: %s has %d bytes; the limit is %d", name, len(value), MaxLabelValue)
		case strings.ContainsFunc(value, isControl):
			return fmt.Errorf("labels: %s holds a control character", name)
		}
	}
	return nil
}

func notInLabelName(r rune) bool {
	letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	return !letter && !slices.Contains([]rune("_.-/"), r)
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
