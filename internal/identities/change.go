package identities

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// List returns the identities of a folder that [New] has made.
func List(dir string) ([]Identity, error) {
	s := serverOf(dir)
	if _, err := os.Stat(ServerFile(dir)); err != nil {
		return nil, fmt.Errorf("%s holds no identities: %w; `toolfleet identities new` makes them, --dir names their folder", dir, err)
	}
	return s.list()
}

// Add makes one more identity, with a folder of its own. The server accepts it after a reload.
func Add(dir string, i Identity) (Identity, error) {
	all, err := List(dir)
	if err != nil {
		return i, err
	}
	if err := check([]Identity{i}); err != nil {
		return i, err
	}
	for _, other := range all {
		if strings.EqualFold(other.Name, i.Name) {
			return i, fmt.Errorf("there is a %s %s already: choose another name", other.Kind, other.Name)
		}
	}
	if _, err := os.Stat(KeyFile(dir, i.Name)); !errors.Is(err, fs.ErrNotExist) {
		return i, fmt.Errorf("%s is there already, and nothing is replaced: move it away, or choose another name", KeyFile(dir, i.Name))
	}
	url, err := urlOf(dir, all)
	if err != nil {
		return i, err
	}
	authority, err := readAuthority(dir)
	if err != nil {
		return i, err
	}
	if i, err = serverOf(dir).add(i); err != nil {
		return i, err
	}
	return i, writeFolder(dir, i, url, authority, append(all, i))
}

// Renew gives an identity a new key, which replaces the old key file. Programs read the file
// at their next connect. After a reload, the server accepts the new key and refuses the old
// one.
func Renew(dir, name string) (Identity, error) {
	i, err := find(dir, name)
	if err != nil {
		return i, err
	}
	file := KeyFile(dir, i.Name)
	if err := removeStale(file + ".new"); err != nil {
		return i, err
	}
	key, err := newKey(file + ".new")
	if err != nil {
		return i, err
	}
	if err := serverOf(dir).rekey(i, key); err != nil {
		return i, err
	}
	i.Key = key
	return i, os.Rename(file+".new", file)
}

// Remove removes an identity from the server's files. After a reload, the server disconnects
// the identity. The folder of the identity stays.
func Remove(dir, name string) (Identity, error) {
	i, err := find(dir, name)
	if err != nil {
		return i, err
	}
	return i, serverOf(dir).remove(i)
}

// find returns an identity by its name.
func find(dir, name string) (Identity, error) {
	all, err := List(dir)
	if err != nil {
		return Identity{}, err
	}
	for _, i := range all {
		if i.Name == name {
			return i, nil
		}
	}
	return Identity{}, fmt.Errorf("there is no identity %.80q: `toolfleet identities ls` shows all", name)
}

var includeLine = regexp.MustCompile(`include "([^"]+)"`)

// Accounts returns the accounts and users as one text: identities.conf with the files that it
// includes. It is for a server whose own configuration comes from elsewhere, for example from
// a chart.
func Accounts(dir string) (string, error) {
	if _, err := List(dir); err != nil {
		return "", err
	}
	return flat(filepath.Join(dir, "nats", "identities.conf"))
}

// flat returns the text of a file. The files that it includes stand in the places of the
// include lines.
func flat(file string) (string, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var errs []error
	text := includeLine.ReplaceAllStringFunc(string(body), func(include string) string {
		part, err := flat(filepath.Join(filepath.Dir(file), filepath.FromSlash(includeLine.FindStringSubmatch(include)[1])))
		errs = append(errs, err)
		return "\n" + part
	})
	return text, errors.Join(errs...)
}
