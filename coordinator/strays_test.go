package coordinator

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// jobs returns the subjects of all published jobs.
func (o *office) jobs() (subjects []string) {
	o.t.Helper()
	all, err := o.conn.All(o.t.Context(), o.names.Stream(bus.Jobs), ">")
	o.must(err)
	for _, msg := range all {
		subjects = append(subjects, msg.Subject)
	}
	return subjects
}

// announce announces a worker that has the tool and takes jobs from a queue of its own.
func (o *office) announce(worker string) (token string, leave func()) {
	o.t.Helper()
	bucket, err := o.conn.Bucket(o.t.Context(), o.names.Stream(bus.BucketWorkers))
	o.must(err)
	tools := []string{o.tool.Digest, worker}
	token = wire.QueueToken(schemas.DefaultPool, tools)
	o.must(bucket.Put(o.t.Context(), worker, rawjson.MustMarshal(wire.Presence{
		V: 1, Worker: worker, Slots: 1, Pools: []string{schemas.DefaultPool}, Queues: map[string]wire.Queue{schemas.DefaultPool: {Token: token, Tools: tools}},
	})))
	return token, func() { o.must(bucket.Delete(o.t.Context(), worker)) }
}

// The last worker of a queue leaves while nobody drives the batch: the next driver moves the
// jobs to another queue.
func TestJobsOfALostToolsetAreMovedByTheNextCoordinator(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		token, leave := o.announce("first")
		_, stop := o.coordinator(Config{Drain: time.Second})
		key := o.submit("s", "b", 1)
		first := o.names.Lane(true, token, key.Call(0))
		o.until("its job is in the queue of the toolset", time.Minute, func() bool { jobs := o.jobs(); return len(jobs) == 1 && jobs[0] == first })
		stop()
		leave()
		o.worker()
		o.coordinator(Config{})
		o.until("another worker has the call", time.Minute, func() bool {
			_, found, err := o.journal.Newest(t.Context(), key.Call(0))
			return err == nil && found
		})
		o.until("no job is left", time.Minute, func() bool { return len(o.jobs()) == 0 })
	})
}

// A job is left in a queue without workers, and its batch is over: the sweep removes the job.
// The sweep leaves a job in a queue with workers.
func TestJobsWithoutABatchAreSweptFromQueuesWithoutWorkers(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		staffed, _ := o.announce("there")
		over := wire.KeyOf(messages.OneTenant, "s", "over").Call(0)
		waiting, lost := wire.WaitingQueue(schemas.DefaultPool), wire.QueueToken(schemas.DefaultPool, []string{"gone"})
		for _, token := range []string{waiting, lost, staffed} {
			_, err := o.conn.Append(t.Context(), o.names.Lane(false, token, over), nil, []byte("{}"))
			o.must(err)
		}
		o.coordinator(Config{QueueTimeout: time.Hour})
		open := o.names.Lane(true, staffed, o.submit("s", "open", 1).Call(0))
		kept := o.names.Lane(false, staffed, over)
		o.until("the sweep has come by", time.Minute, func() bool { return len(o.jobs()) == 2 })
		if jobs := o.jobs(); jobs[0] != kept || jobs[1] != open {
			t.Errorf("left are %v, want %s and %s", jobs, kept, open)
		}
	})
}
