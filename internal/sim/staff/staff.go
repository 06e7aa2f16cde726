// Package staff has the tools of simulated workers: tools files in several versions, and the
// bucket in which workers announce themselves.
package staff

import (
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Pool is the only pool.
const Pool = schemas.DefaultPool

// Versions is the number of versions of the tools. Some tools are the same in all versions.
const Versions = 2

// A Part says which of the tools a tools file has.
type Part string

// The parts.
const (
	Whole  Part = ""
	Reads  Part = "reads"  // tools that change nothing
	Writes Part = "writes" // all other tools
)

// File is a simulated worker's tools file: the tools of one version, or a part of them.
type File struct {
	Version int
	Part    Part
}

// all has the tools of each version. There is a tool for each promise that a tool can make.
var all = func() (versions [Versions]schemas.Catalog) {
	for v := range versions {
		alone, safe := false, true
		tools := []schemas.Tool{
			{Name: "read", Kind: messages.KindRead}, {Name: "sum", Kind: messages.KindCompute},
			{Name: "alone", Kind: messages.KindRead, ConcurrencySafe: &alone}, {Name: "shifty", Kind: messages.KindRead, ConcurrencySafe: []*bool{&safe, &alone}[v]},
			{Name: "shell", Kind: messages.KindWrite, ConcurrencySafe: &safe},
			{Name: "stern", Kind: messages.KindRead, SafeWhen: "true"}, {Name: "sternshell", Kind: messages.KindWrite, SafeWhen: "true"},
			{Name: "once", Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce},
			{Name: "again", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent},
			{Name: "askread", Kind: messages.KindRead}, {Name: "sternask", Kind: messages.KindRead, SafeWhen: "true"},
			{Name: "askonce", Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce},
			{Name: "askagain", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent},
			{Name: "askboth", Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce},
		}
		for i := range tools {
			if name := tools[i].Name; name == "read" || strings.HasSuffix(name, "once") {
				tools[i].Description = strings.Repeat("new ", v)
			}
		}
		if v > 0 { // later versions have a new tool
			tools = append(tools, schemas.Tool{Name: "late", Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce})
		}
		versions[v] = catalog(tools...)
	}
	return versions
}()

// First has every tool, in the first version.
var First = all[0]

// Tool returns a tool of the first version.
func Tool(name string) schemas.Tool {
	tool, _ := First.Lookup(name)
	return tool
}

// Fixed reports whether a call of the tool may run beside others with every possible input.
func Fixed(tool, digest string) bool { return !HandsBack(tool) && !Alone(tool, digest) }

// Alone reports whether calls of the tool run alone. This may differ between versions, so
// Alone looks the digest up.
func Alone(tool, digest string) bool {
	for _, version := range all {
		if t, has := version.Lookup(tool); has && t.Digest == digest {
			if t.ConcurrencySafe != nil {
				return !*t.ConcurrencySafe
			}
			return t.Kind == messages.KindWrite && t.SafeWhen == ""
		}
	}
	return false
}

// HandsBack reports whether workers hand calls of the tool back: only the final input shows
// that such a call must run alone.
func HandsBack(tool string) bool { return strings.HasPrefix(tool, "stern") }

// People returns how many people have to allow a call of the tool.
func People(tool string) int {
	switch tool {
	case "askonce", "askagain", "askread", "sternask":
		return 1
	case "askboth":
		return 2
	}
	return 0
}

func catalog(tools ...schemas.Tool) schemas.Catalog {
	c, err := schemas.NewCatalog(tools...)
	if err != nil {
		panic(err)
	}
	return c
}

// Tools returns the tools of the file.
func (f File) Tools() []schemas.Tool {
	return slices.DeleteFunc(all[f.Version].Tools(), func(t schemas.Tool) bool {
		return f.Part == Reads && t.Kind == messages.KindWrite || f.Part == Writes && t.Kind != messages.KindWrite
	})
}

// Serves reports whether the file has the tool in exactly this definition.
func (f File) Serves(tool, digest string) bool {
	return slices.ContainsFunc(f.Tools(), func(t schemas.Tool) bool { return t.Name == tool && t.Digest == digest })
}

// Presence returns the announcement of a worker with this file, and the token of the queue
// from which the worker takes jobs. A worker of the previous version uses the queue of the
// pool, and announces no queue.
func (f File) Presence(worker string, slots int, old, bounded bool) (p wire.Presence, queue string) {
	p = wire.Presence{Worker: worker, Pools: []string{Pool}, Slots: slots, Toolsets: map[string]map[string]string{Pool: {}}}
	var digests []string
	for _, t := range f.Tools() {
		p.Tools = append(p.Tools, t.Name)
		p.Toolsets[Pool][t.Name] = t.Digest
		digests = append(digests, t.Digest)
	}
	if old {
		return p, Pool
	}
	if queue = Pool; !bounded {
		queue = wire.QueueToken(Pool, digests)
	}
	p.Queues = map[string]wire.Queue{Pool: {Token: queue, Tools: digests}}
	return p, queue
}

// Lapse is how long the announcement of a killed worker stays in the bucket.
const Lapse = 30 * time.Second

// Bucket holds the announcements of workers and their tools.
type Bucket struct {
	Revision int // changes with every announcement of a worker
	Tools    schemas.Catalog
	present  map[string]wire.Presence
}

// NewBucket returns a bucket without workers that knows the tools of the first version.
func NewBucket() *Bucket {
	return &Bucket{Tools: First, present: map[string]wire.Presence{}}
}

// Put announces a worker.
func (b *Bucket) Put(p wire.Presence) {
	b.present[p.Worker] = p
	b.Revision++
}

// Define adds the tools of a file. They replace known tools of the same names.
func (b *Bucket) Define(f File) {
	known := map[string]schemas.Tool{}
	for _, t := range append(b.Tools.Tools(), f.Tools()...) {
		known[t.Name] = t
	}
	var tools []schemas.Tool
	for _, name := range rawjson.SortedKeys(known) {
		tools = append(tools, known[name])
	}
	b.Tools = catalog(tools...)
}

// Delete removes the announcement of a worker, if it is there.
func (b *Bucket) Delete(worker string) {
	if _, has := b.present[worker]; has {
		delete(b.present, worker)
		b.Revision++
	}
}

// Present returns the announcements, sorted by worker.
func (b *Bucket) Present() (present []wire.Presence) {
	for _, worker := range rawjson.SortedKeys(b.present) {
		present = append(present, b.present[worker])
	}
	return present
}
