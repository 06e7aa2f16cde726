package command

import (
	"context"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

// Fleet holds what workers have announced: their tools, and the workers themselves.
type Fleet struct {
	Announced []schemas.Announcement // by the tool's name
	Workers   []wire.Presence        // by name
	queues    *toolset.Fleet
}

// ReadFleet reads what workers have announced.
func ReadFleet(ctx context.Context, conn *bus.Conn) (Fleet, error) {
	var announced []schemas.Announcement
	workers, err := ReadBucket[wire.Presence](ctx, conn, bus.BucketWorkers)
	if err == nil {
		announced, err = ReadBucket[schemas.Announcement](ctx, conn, bus.BucketTools)
	}
	slices.SortStableFunc(announced, func(a, b schemas.Announcement) int { return strings.Compare(a.Name, b.Name) })
	return NewFleet(announced, workers), err
}

// NewFleet returns the fleet with these announcements and workers.
func NewFleet(announced []schemas.Announcement, workers []wire.Presence) Fleet {
	return Fleet{announced, workers, toolset.New(workers)}
}

// serves reports whether a worker that takes new jobs has exactly this tool.
func (f Fleet) serves(t schemas.Tool) bool {
	return f.queues.Serves(toolset.Tool{Pool: t.Pool, Name: t.Name, Digest: t.Digest})
}

// Definition returns the definition of a tool with a digest, if it is still announced.
func (f Fleet) Definition(tool, digest string) (schemas.Tool, bool) {
	for _, a := range f.Announced {
		for _, t := range a.All() {
			if t.Name == tool && t.Digest == digest {
				return t, true
			}
		}
	}
	return schemas.Tool{}, false
}

// CurrentOf returns a tool in its current version.
func (f Fleet) CurrentOf(tool string) (schemas.Tool, bool) {
	for _, t := range f.Current() {
		if t.Name == tool {
			return t, true
		}
	}
	return schemas.Tool{}, false
}

// Current returns every tool in its current version: the one for calls whose batch names no
// catalogue.
func (f Fleet) Current() []schemas.Tool {
	tools := []schemas.Tool{}
	for _, a := range f.Announced {
		tools = append(tools, a.Current(f.serves))
	}
	return tools
}

// Tools returns every tool in its current version, followed by the other versions that workers
// serve, the newest first.
func (f Fleet) Tools() []schemas.Tool {
	tools := []schemas.Tool{}
	for _, a := range f.Announced {
		current := a.Current(f.serves)
		others := slices.DeleteFunc(a.All(), func(t schemas.Tool) bool { return t.Digest == current.Digest || !f.serves(t) })
		slices.SortStableFunc(others, func(x, y schemas.Tool) int { return schemas.CompareVersions(y.Version, x.Version) })
		tools = append(append(tools, current), others...)
	}
	return tools
}
