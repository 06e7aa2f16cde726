package wire

import (
	"encoding/json"
	"strings"
)

// AnnouncedKey returns the key of an announcement in a bucket: its name, and before it the
// tenant if the worker is held to one.
func AnnouncedKey(tenant, name string) string {
	if tenant == "" {
		return name
	}
	return tenant + "." + name
}

// AnnouncedBy splits the key of an announcement. tenant is "" if the worker is held to none.
func AnnouncedBy(key string) (tenant, name string) {
	if tenant, name, held := strings.Cut(key, "."); held {
		return tenant, name
	}
	return "", key
}

// ReadPresence reads the announcement of a worker.
func ReadPresence(key string, value []byte) (w Presence, err error) {
	err = json.Unmarshal(value, &w)
	w.Tenant, _ = AnnouncedBy(key)
	return w, err
}
