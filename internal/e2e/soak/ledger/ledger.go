// Package ledger is the world that the tools of a soak run change. It is a file to which every run
// of a tool adds one line when it starts, which is its effect, and one line when it ends. No part
// of the fleet writes or reads it, so it shows what was done and not what the fleet believes was
// done. Each line is one append, so the order of the lines is the order of the events.
package ledger

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// Point is the start or the end of a run.
type Point string

// A killed run has a Start and no End.
const (
	Start Point = "start"
	End   Point = "end"
)

// Entry is one line.
type Entry struct {
	Point   Point  `json:"point"`
	Tool    string `json:"tool"`
	Session string `json:"session"`
	Batch   string `json:"batch"`
	Index   int    `json:"index"`
	Key     string `json:"key"`
	Fence   uint64 `json:"fence"` // 0: a call that does not claim
	Attempt int    `json:"attempt"`
	Worker  string `json:"worker"`
	MS      int    `json:"ms"` // how long the run takes, from its input
	At      int64  `json:"at"` // in nanoseconds since 1970; only for durations
}

// Append adds a whole line, or nothing if it fails.
func Append(path string, e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// Read reads every line. A file that does not exist is an empty ledger.
func Read(path string) ([]Entry, error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var entries []Entry
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, len(entries)+1, err)
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}
