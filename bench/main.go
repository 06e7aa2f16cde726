// Command bench measures toolfleet beside raw JetStream, the floor, which does the same work with
// the fewest stored messages that it takes. With redis-server and PostgreSQL on this machine it
// also measures asynq and river.
//
//	go run . [-short] [-rounds N] [-slice D] [-only REGEXP] [-old COMMIT|DIR,...] [table ...]
//
// Tables are goals, growth, messages and rest; without a name all are made.
//
// A batch is 8 reads and 2 writes with tools that do nothing, unless its row says otherwise.
// Server, coordinator, worker and client are processes of their own. All contestants run at once
// and take turns for a slice of time each, so that other work of the machine affects them alike.
// Rows show the median of the slices, and the median of the ratios between neighbouring slices.
// Trust the ratios; the times are only true for this machine at this hour.
//
//	main.go       flags, and which tables are made
//	rows.go       what is measured
//	contest.go    contestants take turns; medians and ratios
//	load.go       sessions that submit batches, and what a slice of that took
//	fleet.go      processes, their processor time and their memory
//	toolfleet.go  the product, and older builds of it
//	floor.go      raw JetStream
//	gather.go     what asynq.go and river.go share
//	messages.go   messages through the server, by subject and process
//	rest.go       what a fleet costs that has nothing to do, or much to wait for
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The kernel kills the children of a thread that ends (see process). So children are started on the
// main thread, which lives as long as the program.
func init() { runtime.LockOSThread() }

// options are the flags.
type options struct {
	short  bool
	rounds int
	slice  time.Duration
	only   *regexp.Regexp // nil: all rows
	old    []string
	held   int
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "child" {
		child(os.Args[2], os.Args[3])
		return
	}
	var o options
	var only, old string
	flag.BoolVar(&o.short, "short", false, "half a minute for the ratios to the floor, for CI")
	flag.IntVar(&o.rounds, "rounds", 7, "slices of each contestant in a row")
	flag.DurationVar(&o.slice, "slice", 3*time.Second, "length of a slice")
	flag.IntVar(&o.held, "held", 2_000, "sessions of the table rest, each with a call that runs")
	flag.StringVar(&only, "only", "", "only rows whose name matches this regular expression")
	flag.StringVar(&old, "old", "", "older builds to measure too: commits, or folders with a binary toolfleet")
	flag.Parse()
	if only != "" {
		o.only = regexp.MustCompile(only)
	}
	if old != "" {
		o.old = strings.Split(old, ",")
	}
	if err := bench(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(o options, tables []string) error {
	dir, err := os.MkdirTemp("", "toolfleet-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() { // the children end with this process
		<-interrupted
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}()

	product, err := build(dir, "")
	if err != nil {
		return err
	}
	olds := map[string]string{}
	for _, old := range o.old {
		if olds[old], err = build(dir, old); err != nil {
			return err
		}
	}
	fmt.Println(machine())
	if o.short {
		o.rounds, o.slice = 3, time.Second
		return contests(os.Stdout, o, dir, short(product))
	}
	for _, table := range []struct {
		name string
		make func() error
	}{
		{"goals", func() error { return contests(os.Stdout, o, dir, goals(product, o.old, olds)) }},
		{"growth", func() error { return contests(os.Stdout, o, dir, growth(product)) }},
		{"messages", func() error { return messageCounts(os.Stdout, dir, product) }},
		{"rest", func() error { return rest(os.Stdout, dir, product, o.held) }},
	} {
		if len(tables) > 0 && !slices.Contains(tables, table.name) {
			continue
		}
		if err := table.make(); err != nil {
			return fmt.Errorf("%s: %w", table.name, err)
		}
	}
	return nil
}

// build returns the path of the command toolfleet: of this source, of a commit of its repository,
// or of a folder that holds the binary.
func build(dir, what string) (string, error) {
	if info, err := os.Stat(what); what != "" && err == nil && info.IsDir() {
		return filepath.Abs(filepath.Join(what, "toolfleet"))
	}
	source, binary := "..", filepath.Join(dir, "toolfleet"+what)
	var steps [][]string
	if what != "" {
		source = filepath.Join(dir, "source"+what)
		archive := source + ".tar"
		steps = [][]string{
			{"mkdir", source},
			{"git", "-C", "..", "archive", "--output", archive, what},
			{"tar", "-xf", archive, "-C", source},
		}
	}
	steps = append(steps, []string{"go", "-C", source, "build", "-o", binary, "./cmd/toolfleet"})
	for _, step := range steps {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(step, " "), err, out)
		}
	}
	return binary, nil
}

// machine describes the machine of the measurement.
func machine() string {
	processor, kernel, commit := "unknown processor", "", "unknown commit"
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
				processor = strings.TrimSpace(value)
				break
			}
		}
	}
	if out, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(out))
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	return fmt.Sprintf("%d x %s, Linux %s, %s, commit %s, %s",
		runtime.NumCPU(), processor, kernel, runtime.Version(), commit, time.Now().UTC().Format("2 Jan 2006 15:04 MST"))
}
