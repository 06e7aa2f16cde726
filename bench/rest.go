package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/client"
	fleetpkg "github.com/toolfleet/toolfleet/fleet"
)

// rest prints the cost of an idle fleet, then of a fleet with one running call in each of many
// sessions, then of one where each session also has a waiting batch.
func rest(w io.Writer, dir, product string, held int) error {
	s := relaxed
	s.slots = held
	s.env = []string{fmt.Sprint("TOOLFLEET_COORDINATOR_SLOTS=", held)}
	f, err := s.start(dir, contestant{start: startDaemonsAlone, binary: product}, nil)
	defer f.stop()
	if err != nil {
		return err
	}
	const settle = 10 * time.Second
	fmt.Fprintf(w, "\nAt rest, with %d sessions where it says so. CPU is of one processor.\n\n", held)
	fmt.Fprintln(w, "| | server CPU % | coordinator CPU % | worker CPU % | server MB | coordinator MB | worker MB | KB each, all three |")
	fmt.Fprintln(w, "|---|--:|--:|--:|--:|--:|--:|--:|")
	last := 0.0
	show := func(name string) {
		time.Sleep(settle)
		const watched = 20 * time.Second
		before := f.cpu()
		time.Sleep(watched)
		cpu, memory := f.cpu(), f.memory()
		total := 0.0
		fmt.Fprintf(w, "| %s |", name)
		for _, role := range daemons {
			fmt.Fprintf(w, " %s |", figure(100*(cpu[role]-before[role])/watched.Seconds()))
		}
		for _, role := range daemons {
			total += memory[role]
			fmt.Fprintf(w, " %s |", figure(memory[role]))
		}
		if last == 0 {
			fmt.Fprintln(w, " |")
		} else {
			fmt.Fprintf(w, " %s |\n", figure((total-last)*1024/float64(held)))
		}
		last = total
	}
	show("idle")

	conn, err := nats.Connect(f.url("client"))
	if err != nil {
		return err
	}
	defer conn.Close()
	// A nap ends long after the last measurement.
	const nap = 30 * time.Minute
	running := make(chan struct{}, 2*held)
	if _, err := conn.Subscribe("toolfleet.event._.*.*", func(m *nats.Msg) {
		if m.Header.Get("Toolfleet-Event") == "running" {
			running <- struct{}{}
		}
	}); err != nil {
		return err
	}
	agent, err := client.Connect(context.Background(), fleetpkg.Options{URL: f.url("client")})
	if err != nil {
		return err
	}
	defer agent.Close()
	submitAll := func(l load) error {
		for session := range held {
			if err := agent.Submit(context.Background(), l.message(session, batches.Add(1))); err != nil {
				return err
			}
		}
		return nil
	}
	began := time.Now()
	if err := submitAll(load{reads: 1, sleep: nap, bytes: bytesOfInput}); err != nil {
		return err
	}
	late := time.After(5 * patience)
	for n := range held {
		select {
		case <-running:
		case <-late:
			return fmt.Errorf("only %d of %d calls run after %v", n, held, 5*patience)
		}
	}
	fmt.Fprintf(os.Stderr, "%d calls run, %v after the first was submitted\n", held, time.Since(began).Round(time.Second))
	show("a call runs in each session")
	// A write waits for every call before it.
	if err := submitAll(load{writes: 1, bytes: bytesOfInput}); err != nil {
		return err
	}
	show("and a batch waits behind it")
	return nil
}

var daemons = strings.Fields("server coordinator worker")

// startDaemonsAlone starts a build without a client that would wait for replies.
func startDaemonsAlone(f *fleet, binary string) error {
	f.submit = func(context.Context, load, int, uint64) error { return nil }
	return startDaemons(f, binary)
}
