package approval

import (
	"encoding/base64"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

var signatures = base64.RawURLEncoding.Strict()

// verified reports whether the signature of a decision is by this public key. Nothing else in this
// module checks a signature: the coordinator gets here by [Approvers.Take], the worker by
// [Approvers.Holds].
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

// signedWithEmptySig returns the signed bytes in the form of the previous version, with "sig":""
// among the members. The journal may hold such decisions, and an older CLI makes them, so this
// version reads both forms; the next version removes this one. Both forms bind the same members. No
// bytes of one form are those of a decision in the other, because only one has a sig.
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
