package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/toolfleet/toolfleet/internal/httpapi"
)

// described is the OpenAPI document as the server serves it.
type described struct {
	OpenAPI string
	Paths   map[string]map[string]operation

	compiler *jsonschema.Compiler
	mu       sync.Mutex // guards compiler
}

type operation struct {
	OperationID string
	Parameters  []struct{ Name, In string }
	Responses   map[string]struct {
		Ref     string `json:"$ref"`
		Content map[string]json.RawMessage
	}
}

// description parses the OpenAPI document once.
var description = sync.OnceValue(func() *described {
	d := &described{compiler: jsonschema.NewCompiler()}
	if err := json.Unmarshal(httpapi.Description(), d); err != nil {
		panic(err)
	}
	if err := d.compiler.AddResource("openapi.json", bytes.NewReader(httpapi.Description())); err != nil {
		panic(err)
	}
	return d
})

var placeholder = regexp.MustCompile(`\\\{[a-z]+\\\}`)

// pathOf returns the path of the document that matches a request's path.
func (d *described) pathOf(path string) string {
	path, _, _ = strings.Cut(path, "?")
	for known := range d.Paths {
		if regexp.MustCompile("^" + placeholder.ReplaceAllString(regexp.QuoteMeta(known), "[^/]+") + "$").MatchString(path) {
			return known
		}
	}
	return ""
}

// check returns an error if an answer does not fit the document.
func (d *described) check(method, path string, a answer) error {
	known := d.pathOf(path)
	op, ok := d.Paths[known][strings.ToLower(method)]
	switch {
	case !ok && (a.Status == http.StatusNotFound || a.Status == http.StatusMethodNotAllowed || a.Status == http.StatusForbidden):
		return nil
	case a.Status == http.StatusRequestHeaderFieldsTooLarge, a.Status == http.StatusBadRequest: // answers of net/http itself
		return nil
	case !ok:
		return fmt.Errorf("%s %s is not in openapi.json and is answered with %d", method, path, a.Status)
	}
	status := fmt.Sprint(a.Status)
	response, ok := op.Responses[status]
	if !ok {
		return fmt.Errorf("%s %s: openapi.json has no answer %d", method, known, a.Status)
	}
	at := "#/paths/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(known) + "/" + strings.ToLower(method) + "/responses/" + status
	if response.Ref != "" {
		at = response.Ref
	} else if len(response.Content["application/json"]) == 0 {
		return nil
	}
	d.mu.Lock()
	schema, err := d.compiler.Compile("openapi.json" + at + "/content/application~1json/schema")
	d.mu.Unlock()
	if err != nil {
		return err
	}
	var body any
	decoder := json.NewDecoder(bytes.NewReader(a.Body))
	decoder.UseNumber()
	if err := decoder.Decode(&body); err != nil {
		return fmt.Errorf("%s %s: %d is no JSON: %w", method, path, a.Status, err)
	}
	if err := schema.Validate(body); err != nil {
		return fmt.Errorf("%s %s: %d %s: %#v", method, path, a.Status, a.Body, err)
	}
	return nil
}

// The document lists exactly the routes of the server, each with its parameters.
func TestTheDocumentHasEveryRoute(t *testing.T) {
	d := description()
	if d.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %q", d.OpenAPI)
	}
	routes := append(httpapi.Routes(), "GET /healthz", "GET /readyz", "GET /metrics")
	var documented []string
	ids := map[string]bool{}
	for path, operations := range d.Paths {
		for method, op := range operations {
			documented = append(documented, strings.ToUpper(method)+" "+path)
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: the operation id %q is empty or not its own", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
			for _, name := range regexp.MustCompile(`\{([a-z]+)\}`).FindAllStringSubmatch(path, -1) {
				if !slices.ContainsFunc(op.Parameters, func(p struct{ Name, In string }) bool { return p.Name == name[1] && p.In == "path" }) {
					t.Errorf("%s %s: the parameter %s is missing", method, path, name[1])
				}
			}
		}
	}
	slices.Sort(routes)
	slices.Sort(documented)
	if !slices.Equal(routes, documented) {
		t.Errorf("served:\n%s\ndocumented:\n%s", strings.Join(routes, "\n"), strings.Join(documented, "\n"))
	}
}

// Every reference in the document has a target, and every schema in it is valid.
func TestTheDocumentIsWhole(t *testing.T) {
	var doc struct {
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(httpapi.Description(), &doc); err != nil {
		t.Fatal(err)
	}
	d := description()
	for name := range doc.Components.Schemas {
		if _, err := d.compiler.Compile("openapi.json#/components/schemas/" + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
