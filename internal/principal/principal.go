// Package principal signs and checks statements about which user asks for a batch.
//
// A message in JetStream does not say which connection it came from. The HTTP server knows the
// user of a request by its token. It therefore signs the digest of the batch, its tenant and
// the user with the nkey that it uses for NATS. The signed statement travels in the header
// [messages.PrincipalHeader]:
//
//	base64url(JSON of digest, tenant, user and key) "." base64url(signature of that JSON)
//
// Coordinators believe a statement if it is signed with a key of the setting http_keys.
// Without a statement, only the tenant is known. The package is pure.
// statement only the tenant is known. The package is pure.
package principal

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// MaxUser limits the name of a user, in bytes.
const MaxUser = 256

// maxHeader limits a statement, in bytes.
const maxHeader = 2 << 10

// statement is what an HTTP server signs.
type statement struct {
	Digest string            `json:"digest"` // the digest of the batch as it is stored
	Tenant messages.TenantID `json:"tenant"`
	User   string            `json:"user"`
	Key    string            `json:"key"` // the public key
}

var encoding = base64.RawURLEncoding

// Signer signs statements about users. Safe for concurrent use.
type Signer struct {
	key    nkeys.KeyPair
	public string
}

// NewSigner returns a signer with a new key.
func NewSigner() (*Signer, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	return signer(key)
}

// ParseSigner returns a signer with the key in a file. The file holds an nkey seed, or
// credentials with a seed.
func ParseSigner(file []byte) (*Signer, error) {
	key, err := nkeys.ParseDecoratedUserNKey(file)
	if err != nil {
		return nil, err
	}
	return signer(key)
}

func signer(key nkeys.KeyPair) (*Signer, error) {
	public, err := key.PublicKey()
	return &Signer{key, public}, err
}

// Key returns the public key, for the setting http_keys.
func (s *Signer) Key() string { return s.public }

// Sign returns a signed statement: this user asks for the batch with this digest.
func (s *Signer) Sign(digest string, who messages.Principal) (string, error) {
	if len(who.User) > MaxUser {
		return "", fmt.Errorf("the name of the user has %d bytes; the limit is %d", len(who.User), MaxUser)
	}
	said := rawjson.MustMarshal(statement{Digest: digest, Tenant: who.Tenant, User: who.User, Key: s.public})
	sig, err := s.key.Sign(said)
	if err != nil {
		return "", fmt.Errorf("sign who asks: %w", err)
	}
	return encoding.EncodeToString(said) + "." + encoding.EncodeToString(sig), nil
}

// CheckKey returns an error if a key cannot be one of http_keys.
func CheckKey(key string) error {
	if !nkeys.IsValidPublicUserKey(key) {
		return fmt.Errorf("%.80q is no public user key (toolfleet nkey prints one)", key)
	}
	return nil
}

// User returns the user that a statement names for a batch of a tenant. keys are the public
// keys of the HTTP servers. If there is no statement, the user is "".
func User(header, digest string, tenant messages.TenantID, keys []string) (string, error) {
	if header == "" {
		return "", nil
	}
	body, signature, _ := strings.Cut(header, ".")
	said, err := encoding.DecodeString(body)
	sig, err2 := encoding.DecodeString(signature)
	var s statement
	switch {
	case len(header) > maxHeader, err != nil, err2 != nil, json.Unmarshal(said, &s) != nil:
		return "", errors.New("the statement who asks cannot be read")
	case !slices.Contains(keys, s.Key):
		return "", errors.New("the statement who asks is not signed by an HTTP server of this fleet; the setting http_keys lists their keys")
	case s.Digest != digest || s.Tenant != tenant:
		return "", errors.New("the statement who asks is about another batch")
	case len(s.User) > MaxUser || strings.ContainsFunc(s.User, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", errors.New("the statement who asks names no user that can be shown")
	}
	key, err := nkeys.FromPublicKey(s.Key)
	if err != nil || key.Verify(said, sig) != nil {
		return "", errors.New("the signature of the statement who asks is wrong")
	}
	return s.User, nil
}
