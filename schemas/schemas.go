package schemas

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/strictyaml"
)

// idBase is the first part of every schema's $id; the file's name is the rest.
const idBase = "https://toolfleet.dev/schemas/v1/"

//go:embed *.json asyncapi.yaml
var files embed.FS

// Files returns the JSON Schemas of all messages and of the tools and policy files, and
// asyncapi.yaml.
func Files() fs.FS { return files }

// documents returns every schema by its $id, for references from one schema to another.
var documents = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	names, _ := fs.Glob(files, "*.json") // the pattern is well-formed
	for _, name := range names {
		body, _ := files.ReadFile(name) // it has just been listed
		all[idBase+name] = string(body)
	}
	return all
})

var (
	ownMu sync.Mutex
	own   = map[string]*Schema{} // guarded by ownMu
)

// For returns the compiled schema of a message, by its name: "batch" for batch.json. It returns an
// error for an unknown name.
func For(name string) (*Schema, error) {
	ownMu.Lock()
	defer ownMu.Unlock()
	if s := own[name]; s != nil {
		return s, nil
	}
	body, ok := documents()[idBase+name+".json"]
	if !ok {
		return nil, fmt.Errorf("there is no schema %q; there are %s", strictyaml.Clip(name), strings.Join(Names(), ", "))
	}
	s, err := compile([]byte(body), documents())
	if err != nil {
		return nil, fmt.Errorf("%s.json: %w", name, err)
	}
	own[name] = s
	return s, nil
}

// Names returns the names that [For] knows, sorted.
func Names() []string {
	names, _ := fs.Glob(files, "*.json")
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, ".json")
	}
	return names
}
