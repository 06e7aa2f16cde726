package approvals

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"regexp"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/config"
)

// ReadOrMakeKey reads the key in a file, or makes one and writes it if the file does not exist.
func ReadOrMakeKey(file string) (key approval.Key, made bool, err error) {
	key, err = approval.ReadKey(file)
	switch {
	case err == nil:
		return key, false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return key, false, command.Usage(err)
	}
	if key, err = approval.NewKey(); err == nil {
		err = key.Write(file)
	}
	return key, true, err
}

// signer returns the key and the approver's name from the settings.
func signer(cfg *config.Config) (approval.Key, string, error) {
	file := KeyFile(cfg)
	if file == "" {
		return approval.Key{}, "", command.Usagef("a decision is signed, and there is no key: --key names its file; `toolfleet approvals key FILE` makes one")
	}
	key, err := approval.ReadKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		return key, "", command.Usagef("%w; `toolfleet approvals key FILE` makes one, --key names another", err)
	}
	if err != nil {
		return key, "", command.Usage(err)
	}
	return key, ApproverName(cfg), nil
}

// KeyFile returns the key file of the settings, else the key that dev made for this user; "" if
// there is neither.
func KeyFile(cfg *config.Config) string {
	if cfg.Approver.Key != "" {
		return string(cfg.Approver.Key)
	}
	if own := OwnKeyFile(); own != "" {
		if _, err := os.Stat(own); err == nil {
			return own
		}
	}
	return ""
}

// OwnKeyFile returns the file in which dev keeps a user's approver key. It is in the user's
// config folder, because an agent's tools may read the files of a project. "": the user has no
// config folder.
func OwnKeyFile() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "toolfleet", "approver.key")
}

// ApproverName returns the approver's name of the settings, else the user's name.
func ApproverName(cfg *config.Config) string { return cmp.Or(cfg.Approver.Name, userName(cfg.Tenant)) }

var notInNames = regexp.MustCompile(`[^A-Za-z0-9_.@-]+`)

// userName returns the user's name in the operating system, changed into a valid approver's
// name. The name never equals the tenant, because a tenant may not approve its own calls.
func userName(tenant string) string {
	name := "someone"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	name = notInNames.ReplaceAllString(name, "-")
	name = name[:min(len(name), 50)]
	if name == tenant {
		name += "@terminal"
	}
	return name
}
