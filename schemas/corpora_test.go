package schemas

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// corpus returns the folder of a public corpus. The corpora are beside the module, not part of it;
// without them the test is skipped.
func corpus(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join("..", "..", "shared", "corpora", name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the corpus %s is not here", name)
	}
	return dir
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// knownHoles are the suite's cases that jsonschema v5.3.1 gets wrong: an empty enum accepts
// everything instead of nothing, and two cases of $dynamicRef.
var knownHoles = map[string][]string{
	"draft2020-12/enum.json": {
		"empty enum: string is invalid", "empty enum: number is invalid", "empty enum: null is invalid",
		"empty enum: object is invalid", "empty enum: array is invalid", "empty enum: boolean is invalid",
	},
	"draft2020-12/dynamicRef.json": {
		"$dynamicRef skips over intermediate resources - direct reference: integer property passes",
		"$dynamicRef skips over intermediate resources - direct reference: string property fails",
	},
}

func TestSchemaSuite(t *testing.T) {
	dir := corpus(t, "json-schema-test-suite")
	for draft, url := range map[string]string{
		"draft7": "http://json-schema.org/draft-07/schema#", "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
	} {
		remotes := readRemotes(t, filepath.Join(dir, "remotes"), url)
		files, err := filepath.Glob(filepath.Join(dir, "tests", draft, "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", draft, len(files), err)
		}
		var total, asserted, holes int
		for _, file := range files {
			name := draft + "/" + filepath.Base(file)
			var wrong []string
			for _, c := range suiteCases(t, file, url, remotes) {
				total++
				switch {
				case c.got == c.want:
				case strings.HasSuffix(c.name, "is only an annotation by default") || strings.HasSuffix(c.name, "format is not asserted"):
					asserted++ // we assert formats, on purpose: see Compile
				default:
					wrong = append(wrong, c.name)
				}
			}
			holes += len(wrong)
			if !slices.Equal(wrong, knownHoles[name]) {
				t.Errorf("%s is wrong about %q, known are %q", name, wrong, knownHoles[name])
			}
		}
		t.Logf("%s: %d cases, %d right, %d formats asserted on purpose, %d known holes", draft, total, total-asserted-holes, asserted, holes)
	}
}

type suiteCase struct {
	name      string
	got, want bool
}

// suiteCases runs the groups of one file. The suite's schemas of draft 7 do not say which draft
// they are.
func suiteCases(t *testing.T, file, draftURL string, remotes map[string]string) []suiteCase {
	var groups []struct {
		Description string
		Schema      json.RawMessage
		Tests       []struct {
			Description string
			Data        json.RawMessage
			Valid       bool
		}
	}
	if err := json.Unmarshal(readFile(t, file), &groups); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var cases []suiteCase
	for _, g := range groups {
		s, err := compile(withDraft(g.Schema, draftURL), remotes)
		if err != nil {
			t.Errorf("%s: %s: %v", file, g.Description, err)
			continue
		}
		for _, c := range g.Tests {
			cases = append(cases, suiteCase{g.Description + ": " + c.Description, s.Validate(c.Data) == nil, c.Valid})
		}
	}
	return cases
}

func withDraft(schema json.RawMessage, url string) json.RawMessage {
	members, err := rawjson.Object(schema)
	if err != nil || members["$schema"] != nil {
		return schema
	}
	members = maps.Clone(members)
	members["$schema"] = rawjson.Quote(url)
	return rawjson.MustMarshal(members)
}

// readRemotes is the documents that the suite refers to, by the address it gives them.
func readRemotes(t *testing.T, dir, draftURL string) map[string]string {
	remotes := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		remotes["http://localhost:1234/"+filepath.ToSlash(rel)] = string(withDraft(readFile(t, path), draftURL))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return remotes
}

func TestJSONSuite(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join(corpus(t, "json-test-suite"), "test_parsing", "*.json"))
	anything := mustCompile(t, `{}`)
	var y, n, accepted, refused int
	for _, file := range files {
		body, name := readFile(t, file), filepath.Base(file)
		err := rawjson.Check(body)
		if (err == nil) != (anything.Validate(body) == nil) {
			t.Errorf("%s: Check says %v, Validate another thing", name, err)
		}
		switch name[0] {
		case 'y':
			y++
			// We refuse duplicate keys, which the suite lets pass: two readers may see two values.
			if err != nil && !strings.HasPrefix(name, "y_object_duplicated_key") {
				t.Errorf("%s was refused: %v", name, err)
			}
			if err != nil {
				t.Logf("%s is refused on purpose: %v", name, err)
			}
		case 'n':
			n++
			if err == nil || err.Error() == "" {
				t.Errorf("%s was accepted", name)
			}
		case 'i':
			if err == nil {
				accepted++
			} else {
				refused++
			}
		}
	}
	t.Logf("%d y_, %d n_, %d i_ of which %d accepted", y, n, accepted+refused, accepted)
}

func TestNaughtyStrings(t *testing.T) {
	var naughty []string
	if err := json.Unmarshal(readFile(t, filepath.Join(corpus(t, "naughty-strings"), "blns.json")), &naughty); err != nil {
		t.Fatal(err)
	}
	for _, s := range naughty {
		if s == "" {
			continue // the validator leaves an empty name out of its pointers
		}
		q := string(rawjson.Quote(s))
		named := mustCompile(t, `{"type":"object","properties":{`+q+`:{"const":`+q+`}},"required":[`+q+`],"additionalProperties":false}`)
		if err := named.Validate([]byte(`{` + q + `:` + q + `}`)); err != nil {
			t.Errorf("%s as name and value: %v", q, err)
		}
		err := named.Validate([]byte(`{` + q + `:0}`))
		if want := cut("/" + escapeToken(s)); err == nil || err.(*ValidationError).Violations[0].Pointer != want {
			t.Errorf("%s with a wrong value: got %v, want the pointer %q", q, err, want)
		}
		err = mustCompile(t, `{"additionalProperties":{"type":"integer","maximum":1}}`).Validate([]byte(`{"field":` + q + `}`))
		if len(s) > 12 && (err == nil || strings.Contains(err.Error(), s)) {
			t.Errorf("%s as a wrong value is quoted or accepted: %v", q, err)
		}
	}
	t.Logf("%d strings as names and values", len(naughty))
}
