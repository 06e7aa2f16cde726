package mcptool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// maxLock limits a lock file, in bytes.
const maxLock = 16 << 20

// Lock holds the definitions of a server that a person has accepted.
type Lock struct {
	V     int          `json:"v"`
	Tools []LockedTool `json:"tools"`
}

// LockedTool is an accepted definition with its digest. A reader of the file can compare
// digests instead of definitions.
type LockedTool struct {
	Digest string `json:"digest"`
	Definition
}

// NewLock returns a lock of these definitions, sorted by name.
func NewLock(tools []Definition) Lock {
	lock := Lock{V: 1, Tools: []LockedTool{}}
	for _, d := range tools {
		lock.Tools = append(lock.Tools, LockedTool{d.Digest(), d})
	}
	slices.SortFunc(lock.Tools, func(a, b LockedTool) int { return strings.Compare(a.Name, b.Name) })
	return lock
}

// Definitions returns the accepted definitions.
func (l Lock) Definitions() (tools []Definition) {
	for _, t := range l.Tools {
		tools = append(tools, t.Definition)
	}
	return tools
}

// ReadLock reads a lock file.
func ReadLock(path string) (Lock, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Lock{}, fmt.Errorf("the lock file %s: %w; `toolfleet tools mcp accept` writes it", path, fs.ErrNotExist)
	}
	if err != nil {
		return Lock{}, fmt.Errorf("the lock file: %w", err)
	}
	var lock Lock
	if err := json.Unmarshal(raw, &lock); err != nil || len(raw) > maxLock || lock.V != 1 {
		return Lock{}, fmt.Errorf("the lock file %s cannot be read; `toolfleet tools mcp accept` writes it anew", path)
	}
	for _, t := range lock.Tools {
		compact, err := compactSchema(t.Definition)
		if err != nil || compact.Digest() != t.Digest {
			return Lock{}, fmt.Errorf("the lock file %s: the definition of %.80q does not fit its digest; `toolfleet tools mcp accept` writes it anew", path, t.Name)
		}
	}
	for i := range lock.Tools {
		lock.Tools[i].Definition, _ = compactSchema(lock.Tools[i].Definition)
	}
	return lock, nil
}

// WriteLock writes a lock file in one step: the file has the old content or the new at every
// moment.
func WriteLock(path string, lock Lock) error {
	raw, err := json.MarshalIndent(lock, "", "  ")
	if err != nil {
		return fmt.Errorf("the lock file: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".lock-*")
	if err != nil {
		return fmt.Errorf("the lock file: %w", err)
	}
	_, err = file.Write(append(raw, '\n'))
	err = errors.Join(err, file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("the lock file: %w", err)
	}
	return nil
}

// compactSchema removes the indentation that the schema has in a file.
func compactSchema(d Definition) (Definition, error) {
	var schema any
	decoder := json.NewDecoder(strings.NewReader(string(d.InputSchema)))
	decoder.UseNumber()
	if err := decoder.Decode(&schema); err != nil {
		return d, err
	}
	raw, err := rawjson.Marshal(schema)
	d.InputSchema = raw
	return d, err
}
