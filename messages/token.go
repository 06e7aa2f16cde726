package messages

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"regexp"
)

var (
	plainToken  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	hashedToken = regexp.MustCompile(`^=[A-Za-z0-9_-]{43}$`)
)

// Token makes an id of any bytes safe to be one token of a subject: the id itself if it is plain
// ([A-Za-z0-9_-], 1 to 64 of them), else "=" and the unpadded base64url of its SHA-256. Two ids
// never share a token (as far as SHA-256 goes), because no plain id starts with "=".
func Token[T ~string](id T) string {
	if plainToken.MatchString(string(id)) {
		return string(id)
	}
	sum := sha256.Sum256([]byte(id))
	return "=" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// PlainToken returns the id that a token was made from, or "" when the token is a hash.
func PlainToken(token string) string {
	if plainToken.MatchString(token) {
		return token
	}
	return ""
}

// IsToken reports whether s could have come from [Token]. Every token that arrives in a subject is
// checked before it becomes part of a filter: a published subject may contain a literal "*".
func IsToken(s string) bool { return plainToken.MatchString(s) || hashedToken.MatchString(s) }

// Digest returns the lower-case hex SHA-256 of a body. It names a batch's content and stored
// objects.
func Digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// IsDigest reports whether a text has the form of a digest.
func IsDigest(text string) bool { return digestForm.MatchString(text) }

// OneTenant is the tenant token of a fleet with a single tenant.
const OneTenant = "_"
