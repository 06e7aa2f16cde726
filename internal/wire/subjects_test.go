package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

func TestSubjectsThereAndBack(t *testing.T) {
	var n wire.Names
	key := wire.KeyOf("_", "a.>", "turn 7")
	verb, got, err := n.Batch(n.Of(wire.VerbBatch, key))
	if err != nil || verb != wire.VerbBatch || got != key {
		t.Errorf("batch subject read back: %v %v, err %v; want %v", verb, got, err, key)
	}
	verb, call, err := n.Call(n.OfCall(wire.VerbResult, key.Call(511)))
	if err != nil || verb != wire.VerbResult || call != key.Call(511) {
		t.Errorf("call subject read back: %v %v, err %v; want %v", verb, call, err, key.Call(511))
	}
}

func TestHostileSubjectsAreRefused(t *testing.T) {
	var n wire.Names
	for _, subject := range []string{
		"toolfleet.batch._.*.b", "toolfleet.batch._.>.b", "toolfleet.batch._.s", "toolfleet.batch._.s.b.c",
		"toolfleet.batch._..b", "other.batch._.s.b", "toolfleet.batch._.s.=short", "", ".", "toolfleet.batch._.s.b\x00",
	} {
		if _, key, err := n.Batch(subject); err == nil {
			t.Errorf("subject %q was read as %v", subject, key)
		}
	}
	for _, subject := range []string{"toolfleet.call._.s.b.-1", "toolfleet.call._.s.b.01", "toolfleet.call._.s.b.x", "toolfleet.call._.s.b", "x"} {
		if _, key, err := n.Call(subject); err == nil {
			t.Errorf("subject %q was read as %v", subject, key)
		}
	}
}

// Batches of a session share a subject for ten minutes. No subject that a worker may write to
// has the same number of tokens.
func TestWhereLinesAreKept(t *testing.T) {
	var n wire.Names
	at := time.Date(2026, 11, 22, 6, 10, 0, 0, time.UTC)
	for since, want := range map[time.Duration]bool{-1: false, 0: true, 10*time.Minute - 1: true, 10 * time.Minute: false} {
		if same := n.Ended("_", "s", at) == n.Ended("_", "s", at.Add(since).Local()); same != want {
			t.Errorf("the same subject after %v: %v", since, same)
		}
	}
	ofCall := strings.Count(n.OfCall(wire.VerbAudit, wire.KeyOf("_", "s", "b").Call(1)), ".")
	for _, subject := range []string{n.Ended("_", "s", at), n.Ended("_", "s", time.Time{}), n.Aside(wire.KeyOf("_", "s", "b")), n.Question(wire.KeyOf("_", "s", "b").Call(1))} {
		if strings.Count(subject, ".") != ofCall+1 {
			t.Errorf("%s: want one token more than in the audit subject of a call", subject)
		}
	}
}
