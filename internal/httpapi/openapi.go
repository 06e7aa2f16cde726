package httpapi

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/schemas"
)

// openAPI describes the API, except the schemas of the fleet's messages. Tests compare the
// routes with it, and every answer that they get.
//
//go:embed openapi.json
var openAPI []byte

const componentPath = "#/components/schemas/"

// description returns openAPI, with the schemas of the messages to which it refers.
var description = sync.OnceValue(func() []byte {
	var doc map[string]any
	mustDecode(openAPI, &doc)
	components := doc["components"].(map[string]any)["schemas"].(map[string]any)
	for added := true; added; {
		added = false
		for name := range namesIn(doc) {
			if components[name] == nil {
				components[name] = messageSchema(name)
				added = true
			}
		}
	}
	return rawjson.MustMarshal(doc)
})

// messageSchema returns the schema of a message, with its references changed to components.
func messageSchema(name string) map[string]any {
	body, err := fs.ReadFile(schemas.Files(), name+".json")
	if err != nil {
		panic(fmt.Sprintf("httpapi: openapi.json: %v", err)) // cannot happen: a test reads the file
	}
	var schema map[string]any
	mustDecode(body, &schema)
	delete(schema, "$id")
	delete(schema, "$schema")
	eachRef(schema, func(ref string) string {
		file, inside, _ := strings.Cut(ref, "#")
		if file == "" {
			file = name
		}
		return componentPath + strings.TrimSuffix(file, ".json") + inside
	})
	return schema
}

// namesIn returns the components that a document refers to.
func namesIn(doc any) map[string]bool {
	names := map[string]bool{}
	eachRef(doc, func(ref string) string {
		if rest, ok := strings.CutPrefix(ref, componentPath); ok {
			name, _, _ := strings.Cut(rest, "/")
			names[name] = true
		}
		return ref
	})
	return names
}

// eachRef replaces every reference in a document by the result of change.
func eachRef(doc any, change func(ref string) string) {
	switch v := doc.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			v["$ref"] = change(ref)
		}
		for _, value := range v {
			eachRef(value, change)
		}
	case []any:
		for _, value := range v {
			eachRef(value, change)
		}
	}
}

func mustDecode(body []byte, into any) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		panic(fmt.Sprintf("httpapi: openapi.json and the schemas: %v", err)) // cannot happen: a test reads the files
	}
}

func (s *Server) getOpenAPI(w http.ResponseWriter, _ *request) error {
	writeJSON(w, http.StatusOK, description())
	return nil
}
