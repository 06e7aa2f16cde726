package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/toolfleet/toolfleet/messages"
)

// JWTConfig says which JSON Web Tokens are accepted. Issuer, Audience and Keys are required.
type JWTConfig struct {
	Issuer   string // the value of the claim iss
	Audience string // one of the values of the claim aud
	Keys     string // the issuer's key set (JWKS): a file, or an https address
	// TenantClaim is the claim that names the tenant. "": every token is of the tenant Tenant.
	TenantClaim string
	Tenant      string
	// Fetch fetches the keys from an address. nil: [http.DefaultTransport].
	Fetch http.RoundTripper
}

// fetchIn is how long the issuer may take to answer.
const fetchIn = 10 * time.Second

// JWT checks the tokens of an issuer. Safe for concurrent use.
type JWT struct {
	cfg      JWTConfig
	verifier *oidc.IDTokenVerifier
}

// algorithms lists the accepted signatures. All of them use key pairs. Signatures with a
// shared secret are refused, because a server that can check such a token can also make one.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA,
}

// NewJWT reads the keys from a file, or prepares to fetch them until ctx ends.
func NewJWT(ctx context.Context, cfg JWTConfig) (*JWT, error) {
	if cfg.Issuer == "" || cfg.Audience == "" || cfg.Keys == "" {
		return nil, errors.New("jwt: issuer, audience and keys are needed together")
	}
	var keys oidc.KeySet
	switch {
	case strings.HasPrefix(cfg.Keys, "https://"):
		fetching := &http.Client{Timeout: fetchIn, Transport: cfg.Fetch}
		keys = remoteKeys{oidc.NewRemoteKeySet(oidc.ClientContext(ctx, fetching), cfg.Keys)}
	case strings.Contains(cfg.Keys, "://"):
		return nil, fmt.Errorf("jwt: keys %q: want a file or an https address", cfg.Keys)
	default:
		fixed, err := readKeys(cfg.Keys)
		if err != nil {
			return nil, fmt.Errorf("jwt: keys: %w", err)
		}
		keys = fixed
	}
	return &JWT{cfg, oidc.NewVerifier(cfg.Issuer, keys, &oidc.Config{ClientID: cfg.Audience, SupportedSigningAlgs: algorithms})}, nil
}

// remoteKeys is the key set at an address. The verifier makes a text of every error. So
// VerifySignature also stores the error of a failed fetch in the variable that the context of
// the check names.
type remoteKeys struct{ *oidc.RemoteKeySet }

// failureKey is the key under which a context has a *error for the error of a fetch.
type failureKey struct{}

// VerifySignature implements [oidc.KeySet].
func (k remoteKeys) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.RemoteKeySet.VerifySignature(ctx, token)
	if kept, ok := ctx.Value(failureKey{}).(*error); ok && err != nil && strings.HasPrefix(err.Error(), "fetching keys") {
		*kept = fmt.Errorf("%.300s", err) // the error quotes the issuer's answer
	}
	return payload, err
}

// readKeys reads from a key set those public keys that are for signatures.
func readKeys(file string) (*oidc.StaticKeySet, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	keys := &oidc.StaticKeySet{}
	for _, key := range set.Keys {
		if key = key.Public(); key.Valid() && key.Use != "enc" {
			keys.PublicKeys = append(keys.PublicKeys, key.Key)
		}
	}
	if len(keys.PublicKeys) == 0 {
		return nil, fmt.Errorf("%s: has no public key for signatures", file)
	}
	return keys, nil
}

// Owner returns the principal to whom a token was issued.
func (j *JWT) Owner(ctx context.Context, token string) (Principal, error) {
	var failure error // the error of fetching the keys
	verified, err := j.verifier.Verify(context.WithValue(ctx, failureKey{}, &failure), token)
	var expired *oidc.TokenExpiredError
	switch {
	case failure != nil:
		return Principal{}, &Unchecked{fmt.Errorf("jwt: %s: %w", j.cfg.Keys, failure)}
	case errors.As(err, &expired):
		return Principal{}, errExpired
	case err != nil:
		return Principal{}, &Denied{Message: "the token is not valid here: its signature, issuer or audience is not what this server takes"}
	}
	p := Principal{Tenant: j.cfg.Tenant, User: verified.Subject, Expires: verified.Expiry}
	if j.cfg.TenantClaim == "" {
		return p, nil
	}
	var claims map[string]any
	if err := verified.Claims(&claims); err != nil {
		return Principal{}, err
	}
	p.Tenant, _ = claims[j.cfg.TenantClaim].(string)
	if !messages.IsToken(p.Tenant) {
		return Principal{}, &Denied{Message: "the token names no tenant in the claim " + j.cfg.TenantClaim}
	}
	return p, nil
}
