package client_test

import (
	"context"
	"errors"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// startFleet starts a fleet in this process, for the examples. It serves look_up (a read), note (a
// write), refund (a write that alice has to allow; keyFile holds her key) and wait (a read that
// does not end by itself).
func startFleet() (options fleet.Options, keyFile string, stop func()) {
	srv, err := devserver.Start(devserver.Options{Listen: "127.0.0.1:0"})
	check(err)
	options = fleet.Options{URL: srv.URL()}
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := bus.Connect(ctx, bus.To(options, "example fleet"))
	check(err)

	var tools tool.Registry
	add := func(name string, kind messages.Kind, run func(context.Context, tool.Call) (tool.Output, error)) {
		check(tools.Add(schemas.Tool{Name: name, Kind: kind, InputSchema: []byte(`{"type":"object"}`)}, tool.Func(run)))
	}
	says := func(text string) func(context.Context, tool.Call) (tool.Output, error) {
		return func(context.Context, tool.Call) (tool.Output, error) { return tool.Text(text), nil }
	}
	add("look_up", messages.KindRead, says("12 items"))
	add("note", messages.KindWrite, says("noted"))
	add("refund", messages.KindWrite, says("refunded"))
	add("wait", messages.KindRead, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		<-ctx.Done()
		return tool.Output{}, context.Cause(ctx)
	})

	alice, err := approval.NewKey()
	check(err)
	dir, err := os.MkdirTemp("", "")
	check(err)
	keyFile = filepath.Join(dir, "alice.nk")
	check(alice.Write(keyFile))
	approvers, err := approval.NewApprovers([]messages.Approver{{Name: "alice", Key: alice.Public()}})
	check(err)
	policy, err := schemas.ParsePolicy("policy.yaml", []byte("ask: [refund]\n"))
	check(err)
	rules, err := permission.New(permission.Config{
		Default: permission.Effect(policy.Default), Version: policy.Version,
		Layers: []permission.Layer{{Source: "policy.yaml", Rules: policy.Rules}},
	})
	check(err)
	w, err := worker.New(conn, &tools, worker.Config{Rules: rules, Approvals: approvers})
	check(err)
	c, err := coordinator.New(conn, coordinator.Config{Approvers: approvers})
	check(err)
	var running sync.WaitGroup
	running.Go(func() { check(w.Run(ctx)) })
	running.Go(func() { check(c.Run(ctx)) })
	agent, err := client.Connect(ctx, fleet.Options{}, clientconn.Over(conn))
	check(err)
	ready := batch("ready", "look_up")
	ready.Session = "ready"
	for err = client.ErrNoFleet; errors.Is(err, client.ErrNoFleet); {
		_, err = agent.Run(ctx, ready)
	}
	check(err)
	return options, keyFile, func() {
		check(os.RemoveAll(dir))
		cancel()
		running.Wait()
		conn.Close()
		srv.Shutdown()
	}
}

// connect starts a fleet and returns an agent of it. stop ends both.
func connect() (c *client.Client, stop func()) {
	options, _, stopFleet := startFleet()
	c, err := client.Connect(context.Background(), options)
	check(err)
	return c, func() {
		c.Close()
		stopFleet()
	}
}

// batch returns a batch with one call per tool.
func batch(id messages.BatchID, tools ...string) messages.Batch {
	message := `{"calls":[`
	for i, name := range tools {
		if i > 0 {
			message += ","
		}
		message += `{"id":"call-` + string(rune('0'+i)) + `","name":"` + name + `","input":{}}`
	}
	return messages.Batch{ID: id, Session: "conversation", Provider: messages.Canonical, Message: []byte(message + `]}`)}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
