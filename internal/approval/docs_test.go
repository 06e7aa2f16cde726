package approval

import (
	"crypto/ed25519"
	"encoding/base32"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/messages"
)

// docsExample is the signature example of docs/approvals.md.
type docsExample struct {
	seed, commands string
	decision       messages.Decision
	signed         []byte
}

func readExample(t *testing.T) (e docsExample) {
	t.Helper()
	page, err := os.ReadFile("../../docs/approvals.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "### An example\n")
	blocks := regexp.MustCompile("(?s)```[a-z]+\n(.*?)\n```").FindAllStringSubmatch(text, -1)
	if !found || len(blocks) != 3 {
		t.Fatalf("the example has %d blocks, want the decision, its signed bytes and the commands", len(blocks))
	}
	e.seed = regexp.MustCompile(`\bSU[A-Z2-7]{56}\b`).FindString(text)
	decision, refusal := Decode([]byte(blocks[0][1]))
	if refusal != nil {
		t.Fatal(refusal)
	}
	e.decision, e.signed, e.commands = decision, []byte(blocks[1][1]), blocks[2][1]
	return e
}

// This package makes the key, the bytes and the signature that docs/approvals.md shows.
func TestTheExampleInTheDocs(t *testing.T) {
	e := readExample(t)
	if signed, err := e.decision.Signed(); err != nil || string(signed) != string(e.signed) {
		t.Errorf("signed, %v\n%s\nin the docs\n%s", err, signed, e.signed)
	}
	people, err := NewApprovers([]messages.Approver{{Name: e.decision.By, Key: e.decision.Key}})
	if err != nil {
		t.Fatal(err)
	}
	if refusal := people.verify(e.decision); refusal != nil {
		t.Error(refusal)
	}
	pair, err := nkeys.FromSeed([]byte(e.seed))
	if err != nil {
		t.Fatal(err)
	}
	if public, err := pair.PublicKey(); err != nil || public != e.decision.Key {
		t.Errorf("the seed is of %s, %v; the decision is by %s", public, err, e.decision.Key)
	}
	if sig, err := pair.Sign(e.signed); err != nil || signatures.EncodeToString(sig) != e.decision.Sig {
		t.Errorf("signed as %s, %v", signatures.EncodeToString(sig), err)
	}
}

// Programs that share no code with this package verify the example in docs/approvals.md: the
// commands of the page, and node. Each program also refuses other bytes.
func TestTheExampleInTheDocsByOthers(t *testing.T) {
	e := readExample(t)
	verifiers := map[string]*exec.Cmd{}
	if hasOpenSSL() {
		verifiers["openssl"] = exec.Command("sh", "-e", "-c", e.commands)
	}
	if _, err := exec.LookPath("node"); err == nil {
		verifiers["node"] = exec.Command("node", "-e", nodeVerify, publicDER(t, e.decision.Key), e.decision.Sig)
	}
	if len(verifiers) == 0 {
		t.Skip("neither openssl 3 nor node is installed: the example is verified by this package alone")
	}
	for name, verify := range verifiers {
		run := func(signed []byte) (string, error) {
			again := exec.Command(verify.Args[0], verify.Args[1:]...)
			again.Dir = t.TempDir()
			if err := os.WriteFile(filepath.Join(again.Dir, "signed.txt"), signed, 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := again.CombinedOutput()
			return string(out), err
		}
		if out, err := run(e.signed); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if out, err := run(append(e.signed, '\n')); err == nil {
			t.Errorf("%s verifies other bytes: %s", name, out)
		}
	}
}

const nodeVerify = `
const crypto = require("crypto"), fs = require("fs");
const [der, sig] = process.argv.slice(1);
const key = crypto.createPublicKey({key: Buffer.from(der, "hex"), format: "der", type: "spki"});
process.exit(crypto.verify(null, fs.readFileSync("signed.txt"), key, Buffer.from(sig, "base64url")) ? 0 : 1);
`

// hasOpenSSL reports whether the commands of the page can run here. LibreSSL, and OpenSSL
// before version 3, lack them.
func hasOpenSSL() bool {
	for _, program := range []string{"sh", "base32", "base64"} {
		if _, err := exec.LookPath(program); err != nil {
			return false
		}
	}
	version, err := exec.Command("openssl", "version").Output()
	return err == nil && regexp.MustCompile(`^OpenSSL ([3-9]|\d\d)`).Match(version)
}

// publicDER returns a public nkey in the form that other programs read, as hex text. It
// decodes the nkey as the page describes.
func publicDER(t *testing.T, nkey string) string {
	t.Helper()
	raw, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(nkey)
	if err != nil || len(raw) != 1+ed25519.PublicKeySize+2 || raw[0] != 0xa0 {
		t.Fatalf("%s is no public key of a user: %x, %v", nkey, raw, err)
	}
	return "302a300506032b6570032100" + hex.EncodeToString(raw[1:33])
}
