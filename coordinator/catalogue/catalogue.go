// Package catalogue remembers which tool definitions were given to agents.
//
// A catalogue has the definitions of one answer to an agent, in any provider's form. Its
// digest identifies exactly these definitions. An agent names the digest in a batch. The calls
// of the batch then use these versions of the tools: see coordinator/plan.
//
//	definitions -> Encode -> body and digest -> Store.Put
//	digest in a batch -> Store.Get -> definitions
//
// A catalogue is stored in the object store under its digest, so it outlives workers and
// coordinators. Package coordinator/announced has something else: the tools that workers
// announce.
package catalogue

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// MaxBytes is the size limit of an encoded catalogue.
const MaxBytes = 16 << 20

// encoded is the stored form of a catalogue.
type encoded struct {
	V     int            `json:"v"`
	Tools []schemas.Tool `json:"tools"` // sorted by name, with their digests
}

// Encode returns the stored form of a catalogue and its digest, the hex SHA-256 of that form.
// Both depend on the definitions only: not on their order, the process or the time.
func Encode(tools schemas.Catalog) (body []byte, digest string) {
	body = rawjson.MustMarshal(encoded{messages.Version, tools.Tools()})
	return body, messages.Digest(body)
}

// Digest returns the digest of a catalogue.
func Digest(tools schemas.Catalog) string {
	_, digest := Encode(tools)
	return digest
}

// Decode reads a stored catalogue. It computes the digest of each definition itself, so a
// forged body cannot give a definition the digest of another.
func Decode(body []byte) (schemas.Catalog, error) {
	fail := func(err error) (schemas.Catalog, error) { return schemas.Catalog{}, fmt.Errorf("%w: %w", errNone, err) }
	if len(body) > MaxBytes {
		return fail(fmt.Errorf("%d bytes: the limit is %d", len(body), MaxBytes))
	}
	if err := rawjson.Check(body); err != nil {
		return fail(err)
	}
	var stored encoded
	if err := json.Unmarshal(body, &stored); err != nil {
		return fail(err)
	}
	if stored.V != messages.Version {
		return fail(fmt.Errorf("v is %d; this coordinator reads %d", stored.V, messages.Version))
	}
	tools, err := schemas.NewCatalog(stored.Tools...)
	if err != nil {
		return fail(err)
	}
	return tools, nil
}

// errNone says that a stored body is not a catalogue, or that this version cannot read it.
var errNone = errors.New("no catalogue")
