// Package secrets reads the secrets folder. It has one file for each secret, with the name of
// the secret. The file is read each time its secret is needed, so a replaced file takes effect
// at once.
//
// The value of a secret may appear in requests only. [Folder.Read] returns the value. [Redact]
// removes it from text that a service has sent, before the text goes to a model, an event or a
// log.
package secrets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// maxBytes limits the size of a secret.
const maxBytes = 64 << 10

// leastRedacted is the length, in bytes, of the shortest value that is removed from text. A
// shorter value may also occur in unrelated words.
const leastRedacted = 6

var secretName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$`)

// Folder is the path of a folder of secrets. "" is a folder without secrets.
type Folder string

// Read returns the value of a secret: the content of its file without line breaks at the end.
// The error names the secret, but does not contain its value.
func (f Folder) Read(name string) (string, error) {
	switch {
	case !secretName.MatchString(name):
		return "", fmt.Errorf("secret %.80q: want a name of letters, digits, '.', '_' and '-'", name)
	case f == "":
		return "", fmt.Errorf("secret %s: there is no secrets folder; name it with --secrets DIR", name)
	}
	file, err := os.Open(filepath.Join(string(f), name))
	if err != nil {
		return "", fmt.Errorf("secret %s: %w; write the value into a file of that name in the secrets folder", name, reason(err))
	}
	defer file.Close()
	value, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	switch value = bytes.TrimRight(value, "\r\n"); {
	case err != nil:
		return "", fmt.Errorf("secret %s: %w", name, reason(err))
	case len(value) > maxBytes:
		return "", fmt.Errorf("secret %s: its file has more than %d bytes", name, maxBytes)
	case len(value) == 0:
		return "", fmt.Errorf("secret %s: its file is empty", name)
	}
	return string(value), nil
}

// reason returns what is wrong with a file. It leaves out the file's path.
func reason(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it has no file")
	}
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// Redact replaces each of the values in a text by [secret].
func Redact(text []byte, values []string) []byte {
	for _, value := range values {
		if len(value) >= leastRedacted {
			text = bytes.ReplaceAll(text, []byte(value), []byte("[secret]"))
		}
	}
	return text
}

// RedactText is [Redact] for a string.
func RedactText(text string, values []string) string {
	if len(values) == 0 || strings.TrimSpace(text) == "" {
		return text
	}
	return string(Redact([]byte(text), values))
}
