// Command toolfleet runs the tool calls of LLM agents on a fleet over NATS JetStream.
//
// This package has the daemons, and one file for each command that needs no package of its own. The
// packages below internal have the other commands, and what all commands share: command has the
// streams and the settings, progress shows batches, and terminal shows text and asks for answers.
//
// All commands keep these rules: stdout is for data, stderr for everything else. The exit status is
// 0 for done, 1 for failed, 2 for a wrong usage or setting; a refused or aborted batch has failed,
// a completed batch with failed calls is done. Every error says what to do next.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/approvals"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/batches"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/health"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/policy"
	"github.com/toolfleet/toolfleet/internal/daemon"
)

// cli lists the commands in the order in which help shows them.
type cli struct {
	Init        initCmd          `cmd:"" help:"Write a toolfleet.yaml and a tools file to start from."`
	Run         runCmd           `cmd:"" help:"Run one batch: the tool calls of a model's message. Prints what to append to the conversation."`
	Plan        planCmd          `cmd:"" help:"Show the stages in which a batch would run. Runs nothing."`
	Dev         devCmd           `cmd:"" help:"Run a whole fleet in this process and listen for agents."`
	NATS        natsCmd          `cmd:"" name:"nats" help:"Run a NATS server with safe settings."`
	Nkey        nkeyCmd          `cmd:"" help:"Make a key: who a program or a person is at the NATS server."`
	Identities  identitiesCmd    `cmd:"" help:"Write who is who in a fleet: keys, the NATS server's configuration, certificates."`
	Coordinator coordinatorCmd   `cmd:"" help:"Run a coordinator: it takes batches, plans them and replies."`
	Worker      workerCmd        `cmd:"" help:"Run a worker: it runs tool calls."`
	HTTP        httpCmd          `cmd:"" name:"http" help:"Serve the HTTP API: for agents without a NATS client."`
	HTTPToken   httpTokenCmd     `cmd:"" name:"http-token" help:"Make a token for the HTTP API."`
	MCP         mcpCmd           `cmd:"" name:"mcp" help:"Be an MCP server over stdio: for Claude Code, editors and SDKs."`
	Reinject    reinjectCmd      `cmd:"" help:"Answer a model's message with results from stdin. No fleet: the codecs alone."`
	Tools       toolsCmd         `cmd:"" help:"List tools, or export their definitions for a provider."`
	Batch       batches.Cmd      `cmd:"" help:"List the batches that are open, and fetch what became of one."`
	Watch       batches.WatchCmd `cmd:"" help:"Show what happens to the batches of a session."`
	Approvals   approvals.Cmd    `cmd:"" help:"Answer the calls that wait for a person."`
	Audit       audit.Cmd        `cmd:"" help:"Show who asked for a call, who allowed it, what ran where, and how it ended."`
	Policy      policy.Cmd       `cmd:"" help:"Try a policy: run its tests, or explain what it says of a call."`
	Sandbox     sandboxCmd       `cmd:"" help:"Explain the sandbox of a tool, or run a command in one."`
	Abort       abortCmd         `cmd:"" help:"Abort a batch, or every batch of a session."`
	Steer       steerCmd         `cmd:"" help:"Say something to a session: its next reply takes it along."`
	Status      health.StatusCmd `cmd:"" help:"Show workers, tools, pools and what waits."`
	Doctor      health.DoctorCmd `cmd:"" help:"Check the server, the streams and the fleet, and say what to do."`
	Dead        deadCmd          `cmd:"" help:"List, show and drop messages that could not be processed."`
	Context     contextCmd       `cmd:"" help:"Give names to fleets: where each is, and who asks it."`
	Config      configCmd        `cmd:"" help:"Show the settings in effect, or the JSON Schema of toolfleet.yaml."`
	Version     versionCmd       `cmd:"" help:"Show which build this is."`
}

const description = `Runs the tool calls of LLM agents on a fleet: reads in parallel, writes in order, one answer per call.

Without --nats, NATS_URL and a context, run starts a fleet inside its own process, so there is nothing to install.
Settings come from flags, TOOLFLEET_ variables and toolfleet.yaml, in this order: see "toolfleet config print". A context
("toolfleet context") names a fleet, so that it need not be said each time.

Exit status: 0 done, 1 failed, 2 wrong usage or setting.`

// garbage is the setting GOGC: the heap grows by so many percent before the next garbage
// collection. The heaps of the daemons are small, so Go's default of 100 would collect too
// often.
const garbage = 200

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs the command line and returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	left := -1 // the exit status that kong asks for, for example after --help; -1: none
	parser, err := kong.New(new(cli), kong.Name("toolfleet"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.PostBuild(daemon.ExplainSettings), kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
		kong.ExplicitGroups(daemon.FlagGroups), kong.Exit(func(code int) { left = code }))
	if err != nil {
		panic(err) // never, unless the struct tags are wrong
	}
	args = asTyped(args)
	parsed, err := parser.Parse(args)
	if left >= 0 {
		return left
	}
	if err != nil {
		fmt.Fprintf(stderr, "toolfleet: %v%s\nRun \"toolfleet %s\" for the usage.\n", err, meant(parser.Model, args[0]), helpFor(err))
		return command.Misuse
	}
	ctx, signals := daemon.UntilSignal(context.Background())
	defer signals.Stop()
	a := &command.App{Ctx: ctx, Hurry: signals.Patience, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	a.SetCommandLine(parsed)
	return a.Finish(parsed.Run(a))
}

// asTyped translates the words for help and version that users know from other programs into
// this program's arguments.
func asTyped(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "--version":
		return append([]string{"version"}, args[1:]...)
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}

// meant names the commands that a user may mean by the mistyped first word of a command line;
// "" if the word is a command.
func meant(model *kong.Application, word string) string {
	var paths []string
	for _, command := range model.Leaves(true) {
		path := strings.Fields(command.Path())
		switch {
		case path[0] == word:
			return ""
		case path[len(path)-1] == word, path[0] == "dev" && (word == "start" || word == "server"):
			paths = append(paths, `"`+strings.Join(path, " ")+`"`)
		}
	}
	if len(paths) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(paths, " or ") + "?"
}

// helpFor returns the arguments that show the help of the command in which a mistake was made.
func helpFor(err error) string {
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if command := parse.Context.Command(); command != "" {
			words := strings.Fields(command)
			for i, word := range words {
				if strings.ContainsAny(word, "<[") {
					words = words[:i]
					break
				}
			}
			return strings.Join(words, " ") + " --help"
		}
	}
	return "--help"
}
