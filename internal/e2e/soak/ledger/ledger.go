// Package ledger is the world that the tools of a soak run change. It is a file. Every run of
// a tool adds a line when it starts, which is its effect, and a line when it ends. No part of
// the fleet writes or reads the file, so it shows what was done, and not what the fleet
// believes was done. Each line is one append, so the lines are in the order of the events.
package ledger

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// Point is the start or the end of a run.
type Point string

// A run that was killed has a Start and no End.
const (
	Start Point = "start"
	End   Point = "end"
)

// Entry is a line of the ledger.
type Entry struct {
	Point   Point  `json:"point"`
	Tool    string `json:"tool"`
	Session string `json:"session"`
	Batch   string `json:"batch"`
	Index   int    `json:"index"`
	Key     string `json:"key"`
	Fence   uint64 `json:"fence"` // 0: the call runs without a claim
	Attempt int    `json:"attempt"`
	Worker  string `json:"worker"`
	MS      int    `json:"ms"` // duration of the run, from its input
	At      int64  `json:"at"` // nanoseconds since 1970; only for durations
}

// Append adds one line. If it fails, it adds nothing.
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

// Read reads every line. If the file does not exist, the ledger is empty.
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
