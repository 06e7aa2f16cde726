package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

// toolsetDifference says how some workers differ from the rest of their pool.
type toolsetDifference struct {
	Pool    string   `json:"pool"`
	Workers []string `json:"workers"`
	Lacks   []string `json:"lacks,omitempty"` // tools that another worker of the pool serves
	// Outdated lists tools that these workers serve with another definition than calls are
	// planned with.
	Outdated []string `json:"outdated,omitempty"`
	// Unserved lists outdated tools that no worker of the pool serves with the planned definition:
	// calls of these tools expire.
	Unserved []string `json:"unserved,omitempty"`
	// Shared says that these workers share a queue with others. So they get calls of the tools
	// concerned and hand them back. Another worker takes such a call later, or the call
	// expires.
	Shared bool `json:"shared"`
}

// queueStatus is a queue from which workers of a pool take jobs. Workers that serve the same
// tools share a queue.
type queueStatus struct {
	Pool     string   `json:"pool"`
	Queue    string   `json:"queue"`
	Workers  []string `json:"workers"`
	Draining int      `json:"draining"` // of the workers: they take no new jobs
	Tools    []string `json:"tools"`
	Pending  int      `json:"pending"`   // jobs that no worker has taken
	InFlight int      `json:"in_flight"` // jobs that a worker has
}

// queuesOf returns the queues that workers have announced, sorted by pool and token.
func queuesOf(workers []wire.Presence, fleet command.Fleet) (queues []queueStatus) {
	byToken := map[string]queueStatus{}
	for _, w := range workers {
		for _, pool := range w.Pools {
			q := byToken[queueOf(w, pool)]
			q.Pool, q.Workers = pool, append(q.Workers, w.Worker)
			if w.Draining {
				q.Draining++
			}
			for _, label := range labelsOf(w, pool, fleet) {
				if !slices.Contains(q.Tools, label) {
					q.Tools = append(q.Tools, label)
				}
			}
			byToken[queueOf(w, pool)] = q
		}
	}
	for _, token := range rawjson.SortedKeys(byToken) {
		q := byToken[token]
		if q.Queue = token; wire.PoolOf(token) != q.Pool {
			continue // the token is no queue of this pool
		}
		queues = append(queues, q)
	}
	return queues
}

// labelOf names a tool with its version, if it has one.
func labelOf(t schemas.Tool) string {
	if t.Version == "" {
		return t.Name
	}
	return t.Name + "@" + t.Version
}

// labelsOf names the tools that a worker serves in a pool. A definition that is no longer
// announced is named without its version.
func labelsOf(w wire.Presence, pool string, fleet command.Fleet) (labels []string) {
	serves := toolsetOf(w, pool, fleet)
	for _, name := range rawjson.SortedKeys(serves) {
		var versions []string
		for _, digest := range serves[name] {
			if t, known := fleet.Definition(name, digest); known && t.Version != "" {
				versions = append(versions, labelOf(t))
			}
		}
		if len(versions) == 0 {
			versions = []string{name}
		}
		labels = append(labels, versions...)
	}
	return labels
}

// severalVersions lists each tool that has several versions, with the current one first. In tools,
// the versions of a tool must be neighbours.
func severalVersions(tools []schemas.Tool) (several []string) {
	for i := 0; i < len(tools); {
		n := 1
		for i+n < len(tools) && tools[i+n].Name == tools[i].Name {
			n++
		}
		var labels []string
		for _, t := range tools[i : i+n] {
			label := labelOf(t)
			if t.Version == "" {
				label += "#" + terminal.ShortID(t.Digest)
			}
			labels = append(labels, label)
		}
		if n > 1 {
			several = append(several, strings.Join(labels, " "))
		}
		i += n
	}
	return several
}

// splitPool is a pool in which some workers use the queue of the pool and others the queues of
// their toolsets. max_in_flight bounds only the first.
type splitPool struct {
	Pool    string
	Workers []string // workers that use the queue of the pool
}

func (s splitPool) String() string {
	takes := "take"
	if len(s.Workers) == 1 {
		takes = "takes"
	}
	return fmt.Sprintf("pool %s: only %s %s jobs from the queue that max_in_flight bounds; other workers have queues of their own", s.Pool, few(s.Workers), takes)
}

// splitPools returns the pools that are split. It ignores workers of older versions, which
// know only the queue of the pool.
func splitPools(workers []wire.Presence) (all []splitPool) {
	shared, apart := map[string][]string{}, map[string]bool{}
	for _, w := range workers {
		for pool, q := range w.Queues {
			if q.Token == pool {
				shared[pool] = append(shared[pool], w.Worker)
			} else {
				apart[pool] = true
			}
		}
	}
	for _, pool := range rawjson.SortedKeys(shared) {
		if apart[pool] {
			slices.Sort(shared[pool])
			all = append(all, splitPool{pool, shared[pool]})
		}
	}
	return all
}

// queueOf returns the token of the queue from which a worker takes the jobs of a pool. A worker of
// an older version does not announce it.
func queueOf(w wire.Presence, pool string) string {
	if q, has := w.Queues[pool]; has {
		return q.Token
	}
	return pool
}

// toolset maps each tool that a worker serves in one pool to the digests of its versions. The
// list is empty if the worker announces no digests.
type toolset map[string][]string

// toolsetOf returns the tools that a worker serves in a pool. A worker of an older version
// announces only names.
func toolsetOf(w wire.Presence, pool string, fleet command.Fleet) toolset {
	tools := toolset{}
	if w.Toolsets == nil {
		for _, name := range w.Tools {
			if t, known := fleet.CurrentOf(name); known && t.Pool == pool {
				tools[name] = nil
			}
		}
		return tools
	}
	others := slices.Clone(w.Queues[pool].Tools) // further versions, which Toolsets does not name
	for name, digest := range w.Toolsets[pool] {
		tools[name] = []string{digest}
		for _, other := range others {
			if _, known := fleet.Definition(name, other); known && other != digest {
				tools[name] = append(tools[name], other)
			}
		}
	}
	return tools
}

// has reports whether the toolset has exactly this definition. It is also true if the worker
// announces no digests.
func (s toolset) has(t schemas.Tool) bool {
	return len(s[t.Name]) == 0 || slices.Contains(s[t.Name], t.Digest)
}

// toolsetDifferences compares the workers of each pool with each other, and with the definitions
// that calls are planned with. Workers with the same difference are listed together.
func toolsetDifferences(workers []wire.Presence, fleet command.Fleet) (all []toolsetDifference) {
	planned := map[string]schemas.Tool{}
	for _, t := range fleet.Current() {
		planned[t.Name] = t
	}
	for _, p := range poolsOf(workers, nil) {
		members, shares := map[string]toolset{}, map[string]bool{}
		for _, w := range workers {
			if slices.Contains(w.Pools, p.Pool) {
				members[w.Worker] = toolsetOf(w, p.Pool, fleet)
				shares[w.Worker] = queueOf(w, p.Pool) == p.Pool
			}
		}
		all = append(all, poolDifferences(p.Pool, members, shares, planned)...)
	}
	return all
}

func poolDifferences(pool string, members map[string]toolset, shares map[string]bool, planned map[string]schemas.Tool) (all []toolsetDifference) {
	// The tools that workers of the pool have; true: one of the workers has the planned
	// definition.
	served := map[string]bool{}
	for _, tools := range members {
		for name := range tools {
			t, known := planned[name]
			if !known || t.Pool == pool {
				served[name] = served[name] || !known || tools.has(t)
			}
		}
	}
	for _, worker := range rawjson.SortedKeys(members) {
		d := toolsetDifference{Pool: pool, Shared: shares[worker]}
		for _, name := range rawjson.SortedKeys(served) {
			_, has := members[worker][name]
			t, known := planned[name]
			switch {
			case !has:
				d.Lacks = append(d.Lacks, name)
			case known && !members[worker].has(t):
				d.Outdated = append(d.Outdated, name)
				if !served[name] {
					d.Unserved = append(d.Unserved, name)
				}
			}
		}
		if len(d.Lacks)+len(d.Outdated) == 0 {
			continue
		}
		at := slices.IndexFunc(all, func(other toolsetDifference) bool {
			return slices.Equal(other.Lacks, d.Lacks) && slices.Equal(other.Outdated, d.Outdated) && other.Shared == d.Shared
		})
		if at < 0 {
			at, all = len(all), append(all, d)
		}
		all[at].Workers = append(all[at].Workers, worker)
	}
	slices.SortStableFunc(all, func(a, b toolsetDifference) int { return cmp.Compare(len(b.Unserved), len(a.Unserved)) })
	return all
}

// String returns the difference as a sentence without its full stop.
func (d toolsetDifference) String() string {
	verb := func(one, many string) string {
		if len(d.Workers) == 1 {
			return one
		}
		return many
	}
	var says []string
	if len(d.Lacks) > 0 {
		says = append(says, verb("lacks ", "lack ")+few(d.Lacks))
	}
	if len(d.Outdated) > 0 {
		says = append(says, verb("serves ", "serve ")+few(d.Outdated)+" under another definition than calls are planned with")
	}
	text := fmt.Sprintf("pool %s: %s %s", d.Pool, few(d.Workers), strings.Join(says, ", and "))
	if len(d.Unserved) > 0 {
		text += "; no worker serves " + few(d.Unserved) + " as planned, so those calls wait and then expire"
	}
	return text
}

// few lists at most 8 names and counts the rest.
func few(names []string) string {
	const most = 8
	var shown []string
	for i, name := range names {
		if i == most {
			shown = append(shown, fmt.Sprintf("and %d more", len(names)-most))
			break
		}
		shown = append(shown, terminal.Clean(name, 64))
	}
	return strings.Join(shown, ", ")
}
