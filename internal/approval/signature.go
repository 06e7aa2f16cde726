package approval

import (
	"encoding/base64"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

var signatures = base64.RawURLEncoding.Strict()

// verified reports whether the holder of this public key has signed a decision. No other code
// checks signatures: the coordinator calls verified through [Approvers.Take], the worker
// through [Approvers.Holds].
func verified(d messages.Decision, key string) bool {
	public, err := nkeys.FromPublicKey(key)
	if err != nil {
		return false
	}
	sig, err := signatures.DecodeString(d.Sig)
	if err != nil {
		return false
	}
	for _, form := range []func(messages.Decision) ([]byte, error){messages.Decision.Signed, signedWithEmptySig} {
		if signed, err := form(d); err == nil && public.Verify(signed, sig) == nil {
			return true
		}
	}
	return false
}

// signedWithEmptySig returns the signed bytes in the form of the previous version, which has
// "sig":"" among the members. The journal may have decisions in this form, and an older CLI
// makes them. This version therefore reads both forms. The next version will not read the old
// form. Both forms cover the same members. Only the old form has a member sig, so a signature
// in one form never fits another decision in the other form.
func signedWithEmptySig(d messages.Decision) ([]byte, error) {
	d.Sig = ""
	raw, err := rawjson.Marshal(d)
	if err != nil {
		return nil, err
	}
	canonical, err := rawjson.Canonical(raw)
	if err != nil {
		return nil, err
	}
	return append([]byte("toolfleet decision v1\n"), canonical...), nil
}
