package schemas

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"sync"
)

// idBase is where the schemas say that they are: their $id is idBase and the file's name.
const idBase = "https://toolfleet.dev/schemas/v1/"

//go:embed *.json asyncapi.yaml
var files embed.FS

// Files is the JSON Schema of every message and of the tools file, and asyncapi.yaml.
func Files() fs.FS { return files }

// documents is every schema by its $id, for the references from one to another.
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

// For is the compiled schema of a message by its name: "batch" for batch.json. A name that is none is an error.
func For(name string) (*Schema, error) {
	ownMu.Lock()
	defer ownMu.Unlock()
	if s := own[name]; s != nil {
		return s, nil
	}
	body, ok := documents()[idBase+name+".json"]
	if !ok {
		return nil, fmt.Errorf("there is no schema %q; there are %s", clip(name), strings.Join(Names(), ", "))
	}
	s, err := compile([]byte(body), documents())
	if err != nil {
		return nil, fmt.Errorf("%s.json: %w", name, err)
	}
	own[name] = s
	return s, nil
}

// Names is what [For] knows, sorted.
func Names() []string {
	names, _ := fs.Glob(files, "*.json")
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, ".json")
	}
	return names
}
