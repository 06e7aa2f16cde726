// Command effect is the tool of a soak run. Its effect is a line in the ledger, which it
// writes when it starts. It is a program of its own and small, because every call starts it.
//
//	effect TOOL <input.json     {"ms": its duration, "fail": whether it then fails,
//	                            "flaky": whether it fails in the first attempt}
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/soak/ledger"
)

func main() {
	switch err := run(); {
	case errors.Is(err, errForNow):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(75) // EX_TEMPFAIL: worth another attempt
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("done")
}

var errForNow = errors.New("its input asks for a failure of the first attempt")

func run() error {
	var input struct {
		MS    int  `json:"ms"`
		Fail  bool `json:"fail"`
		Flaky bool `json:"flaky"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		return err
	}
	e := ledger.Entry{
		Tool: os.Args[1], Session: os.Getenv("TOOLFLEET_SESSION"), Batch: os.Getenv("TOOLFLEET_BATCH"),
		Key: os.Getenv("TOOLFLEET_IDEMPOTENCY_KEY"), Worker: os.Getenv("SOAK_WORKER"), MS: input.MS,
	}
	var errs [3]error
	e.Index, errs[0] = strconv.Atoi(os.Getenv("TOOLFLEET_INDEX"))
	e.Attempt, errs[1] = strconv.Atoi(os.Getenv("TOOLFLEET_ATTEMPT"))
	e.Fence, errs[2] = strconv.ParseUint(os.Getenv("TOOLFLEET_FENCE"), 10, 64)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	path := os.Getenv("SOAK_LEDGER")
	e.Point, e.At = ledger.Start, time.Now().UnixNano()
	if err := ledger.Append(path, e); err != nil {
		return err
	}
	time.Sleep(time.Duration(input.MS) * time.Millisecond)
	e.Point, e.At = ledger.End, time.Now().UnixNano()
	if err := ledger.Append(path, e); err != nil {
		return err
	}
	if input.Fail {
		return errors.New("its input asks for a failure")
	}
	if input.Flaky && e.Attempt == 1 {
		return errForNow
	}
	return nil
}
