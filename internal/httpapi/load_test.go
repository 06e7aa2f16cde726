package httpapi_test

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
)

// memory is the bound that docs/http.md names for a server with 1,000 open streams and 200
// waiting requests. In this test it includes the memory of the clients.
const memory = 192 << 20

// A server has 1,000 open streams and 200 waiting requests: each gets its events or its reply,
// within the bound of memory. With TOOLFLEET_HTTP_ROUNDS, which `make soak` sets, the streams
// reconnect so many times, in real time and over real connections.
func TestManyStreams(t *testing.T) {
	if rounds := longRounds(); rounds > 0 {
		manyStreams(t, newFleetAlone(t), rounds)
		return
	}
	inBubble(t, func(t *testing.T, f *testFleet) { manyStreams(t, f, 0) })
}

// longRounds returns how many rounds the long form of a test has. 0 means the short form.
func longRounds() int {
	n, _ := strconv.Atoi(os.Getenv("TOOLFLEET_HTTP_ROUNDS"))
	return n
}

func manyStreams(t *testing.T, f *testFleet, rounds int) {
	const sessions, each, puts = 20, 50, 200
	before := inUse()
	waiting := make(chan answer, puts)
	for i := range puts {
		go func() {
			a, err := f.ask(t.Context(), "PUT", fmt.Sprintf("/v1/sessions/waits%d/batches/b", i), message("gate"))
			if err != nil {
				t.Error(err)
			}
			waiting <- a
		}()
	}
	streams := make([]*events, sessions*each)
	open := func() {
		var opening sync.WaitGroup
		for i := range streams {
			last := ""
			if streams[i] != nil {
				last = streams[i].last
				streams[i].close()
			}
			opening.Go(func() { streams[i] = f.stream(fmt.Sprintf("/v1/sessions/s%d/events", i%sessions), last) })
			if i%100 == 99 { // because the queue of a listener is bounded
				opening.Wait()
			}
		}
		opening.Wait()
	}
	open()
	for round := range 1 + rounds {
		for s := range sessions {
			if a := f.do("PUT", fmt.Sprintf("/v1/sessions/s%d/batches/b%d", s, round), message("look")); a.Status != http.StatusOK {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
		}
		for _, s := range streams {
			s.until(fmt.Sprintf("b%d reply -1", round))
		}
		if round < rounds {
			open()
		}
	}
	grown := inUse() - before
	t.Logf("%d streams and %d waiting requests take %d MiB, their clients included", len(streams), puts, grown>>20)
	if grown > memory && !fleettest.RaceDetector {
		t.Errorf("that is more than %d MiB", memory>>20)
	}
	f.open()
	for range puts {
		if a := <-waiting; a.Status != http.StatusOK {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
}

// inUse returns the memory that this process uses, in bytes.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
