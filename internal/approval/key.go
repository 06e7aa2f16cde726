package approval

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/messages"
)

// Key is the private key of an approver: an nkey of type user, as NATS users have. The zero
// value cannot sign.
type Key struct {
	pair   nkeys.KeyPair
	public string
}

// NewKey makes a key.
func NewKey() (Key, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return Key{}, fmt.Errorf("make a key: %w", err)
	}
	return keyOf(pair)
}

// ReadKey reads a key from a file that has only the seed (SU...). It refuses a file to which
// the group or others have any access, as ssh does: a process that has the seed can decide in
// the name of its owner. On Windows it does not check the file mode, because the mode does not
// show the access of others.
func ReadKey(path string) (Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return Key{}, fmt.Errorf("read the key: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return Key{}, fmt.Errorf("read the key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return Key{}, fmt.Errorf("the key in %s is open to others (mode %04o): set it to 0600 (chmod 600), or make a new key if another user may have read it", path, mode)
	}
	seed, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return Key{}, fmt.Errorf("read the key: %w", err)
	}
	key, err := ParseKey(seed)
	if err != nil {
		return Key{}, fmt.Errorf("%s holds no seed of a user's key (SU...)", path)
	}
	return key, nil
}

// ParseKey reads a key from its seed (SU...). White space around the seed is ignored.
func ParseKey(seed []byte) (Key, error) {
	// Do not wrap the errors of package nkeys, because their texts might have the seed.
	pair, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err != nil || nkeys.CompatibleKeyPair(pair, nkeys.PrefixByteUser) != nil {
		return Key{}, errors.New("this is no seed of a user's key (SU...)")
	}
	return keyOf(pair)
}

func keyOf(pair nkeys.KeyPair) (Key, error) {
	public, err := pair.PublicKey()
	if err != nil {
		return Key{}, errors.New("the key has no public key")
	}
	return Key{pair, public}, nil
}

// Public returns the public half of the key (U...), as the policy has it.
func (k Key) Public() string { return k.public }

// Write stores the key in a new file that only its owner may read. It never replaces a file:
// the key in that file would be lost.
func (k Key) Write(path string) error {
	if k.pair == nil {
		return errors.New("write the key: there is none")
	}
	seed, err := k.pair.Seed()
	if err != nil {
		return errors.New("write the key: it has no seed")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	_, err = f.Write(append(bytes.Clone(seed), '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	return nil
}

// Sign signs a decision: it sets the key, a new nonce and the signature.
func (k Key) Sign(d messages.Decision) (messages.Decision, error) {
	if k.pair == nil {
		return d, errors.New("sign the decision: there is no key")
	}
	d.Key, d.Nonce = k.public, rand.Text()
	signed, err := d.Signed()
	if err != nil {
		return d, fmt.Errorf("sign the decision: %w", err)
	}
	sig, err := k.pair.Sign(signed)
	if err != nil {
		return d, fmt.Errorf("sign the decision: %w", err)
	}
	d.Sig = signatures.EncodeToString(sig)
	return d, nil
}
