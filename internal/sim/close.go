package sim

import (
	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	records "github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// This file is the counterpart of close.go in package coordinator. It carries out what
// batch.Closing and package recall decide.

// close ends every open call of a batch that no driver can bring to its end. Then it makes the
// reply of the batch.
func (d *drive) close() {
	d.Count("closed batches")
	closing := &batch.Closing{Lease: machineConfig.QueueTimeout, Grace: Grace}
	results := make([]messages.Result, len(d.sub.Plan.Calls))
	for !d.closeOnce(closing, results) {
		d.Sleep(Poll)
	}
	d.reply = &messages.Reply{Status: messages.ReplyCompleted, Results: results}
}

// closeOnce ends the calls that no worker runs. It reports whether every call has ended.
func (d *drive) closeOnce(closing *batch.Closing, results []messages.Result) (all bool) {
	newest, err := d.ends(results)
	if err != nil {
		return false
	}
	all = true
	for i, call := range d.sub.Plan.Calls {
		if results[i].Status != "" {
			continue
		}
		key, e := d.sub.Key.Call(i), newest[i]
		next := closing.Call(d.Now, i, e.Record, e.Seq)
		if !next.End {
			all = false
			continue
		}
		result := messages.Result{
			Index: i, CallID: call.ID, Tool: call.PlannedCall.Tool, Attempt: e.Record.Attempt,
			Status: messages.StatusError, Outcome: messages.Failed(messages.CodeInternal, "closed"),
		}
		if next.Unknown {
			result.Status, result.Outcome = messages.StatusOutcomeUnknown, messages.Failed(messages.CodeOutcomeUnknown, "closed")
		}
		// Before a worker runs a call without a claim, it looks for a stored result of the
		// call.
		if e.Seq == 0 {
			stored, err := d.writeResult(key, result)
			if err != nil {
				all = false
				continue
			}
			result = stored
		}
		record := e.Record
		record.State, record.Nonce, record.Result = wire.Ended, d.Nonce(), &result
		if _, err := d.write(key, record, e.Seq, world.Never); err == nil {
			results[i] = result
		} else {
			all = false
		}
	}
	return all && d.withdrawAll() == nil
}

// withdrawAll removes the jobs of the batch from the queues.
func (d *drive) withdrawAll() error {
	return d.Ask("withdraw", d.sub.Key.String(), func() error {
		for _, filter := range names.JobsOf(d.sub.Key) {
			for _, m := range d.Stream(jobsStream).All(filter) {
				d.Delete(jobsStream, m.Seq)
			}
		}
		return nil
	})
}

// ends copies the stored results into results, and returns the newest record of each call.
func (d *drive) ends(results []messages.Result) (newest map[int]records.CallEntry, err error) {
	known, err := truth(d.Task).Calls(anytime, d.sub.Key)
	if err != nil {
		return nil, err
	}
	plans, err := truth(d.Task).Plans(anytime, d.sub.Key)
	if err != nil {
		return nil, err
	}
	ends, newest := recall.Ends(known, plans)
	for i, r := range ends {
		if results[i].Status == "" {
			results[i] = r
		}
	}
	return newest, nil
}
