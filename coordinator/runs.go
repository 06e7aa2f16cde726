package coordinator

import (
	"encoding/json"
	"log/slog"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// runs holds the batches that this coordinator drives, at most one run for each.
type runs struct {
	size prometheus.Gauge
	log  *slog.Logger

	mu    sync.Mutex
	byKey map[string]*batchRun // by batch key; guarded by mu
}

func newRuns(size prometheus.Gauge, log *slog.Logger) *runs {
	return &runs{size: size, log: log, byKey: map[string]*batchRun{}}
}

// enter adds a run. If its batch has a run already, enter returns that one and has it read the
// journal, because it may be about to be suspended.
func (r *runs) enter(d *batchRun) (other *batchRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := d.accepted.Key.String()
	if other := r.byKey[key]; other != nil {
		other.lookSoon()
		return other
	}
	r.byKey[key] = d
	r.size.Set(float64(len(r.byKey)))
	return nil
}

func (r *runs) leave(d *batchRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(d)
}

// leaveIfQuiet removes a run, unless it has an unread notice or nudge. A driver that comes later
// then finds no run, and starts one.
func (r *runs) leaveIfQuiet(d *batchRun) (left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(d.nudge)+len(d.notices) > 0 {
		return false
	}
	r.remove(d)
	return true
}

// remove drops this run, but not another run of the same batch. The caller holds mu.
func (r *runs) remove(d *batchRun) {
	if key := d.accepted.Key.String(); r.byKey[key] == d {
		delete(r.byKey, key)
	}
	r.size.Set(float64(len(r.byKey)))
}

// of returns the run of a batch, or nil.
func (r *runs) of(key wire.BatchKey) *batchRun { return r.named(key.String()) }

func (r *runs) named(batch string) *batchRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byKey[batch]
}

// Has reports whether this coordinator drives a batch.
func (r *runs) Has(batch string) bool { return r.named(batch) != nil }

// Nudge asks every run whose batch key begins with prefix to read the journal.
func (r *runs) Nudge(prefix string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, d := range r.byKey {
		if strings.HasPrefix(key, prefix) {
			d.lookSoon()
		}
	}
}

// onNotice hands a worker's notice to the run of its batch. It drops the notice if there is no run,
// or if the run's channel is full: the next poll then finds what happened.
func (r *runs) onNotice(m bus.Msg) {
	var n wire.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil {
		r.log.Warn("a worker's notice cannot be read and is dropped; the next poll finds what it was about", "err", err)
		return
	}
	if d := r.named(n.Batch); d != nil {
		select {
		case d.notices <- n:
		default:
		}
	}
}
