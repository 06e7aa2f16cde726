package client

import (
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/messages"
)

// Signer signs the decisions of a person: an approver in the fleet's policy. A program that holds
// it can decide in that person's name.
type Signer struct {
	name string
	key  approval.Key
}

// NewSigner returns the signer of an approver. name is the approver's name in the policy. seed is
// the secret half of the approver's key: an nkey of a user (SU...), as `toolfleet approvals key`
// makes one.
func NewSigner(name string, seed []byte) (Signer, error) {
	key, err := approval.ParseKey(seed)
	return Signer{name, key}, err
}

// ReadSigner is [NewSigner] with the seed in a file, which only its owner may be able to read.
func ReadSigner(name, file string) (Signer, error) {
	key, err := approval.ReadKey(file)
	return Signer{name, key}, err
}

// Sign returns a decision about a question, for [Client.Decide]. The caller fills in Verdict and,
// where needed, Input (the new arguments of an edit), Reason (the model reads it) and Ticket. Sign
// adds the rest. It refuses a question whose arguments do not match its id and hash: the person
// would have seen other arguments than those that run.
func (s Signer) Sign(q messages.Approval, d messages.Decision) (messages.Decision, error) {
	if !approval.Intact(q) {
		return messages.Decision{}, errors.New("sign the decision: the question does not fit its own id")
	}
	signed := approval.Answer(q, d.Verdict, s.name)
	signed.Input, signed.Reason, signed.Ticket, signed.At = d.Input, d.Reason, d.Ticket, time.Now().UTC()
	return s.key.Sign(signed)
}
