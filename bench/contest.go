package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// contests runs contests and prints one table of all. After an error it prints what there is.
func contests(w io.Writer, o options, dir string, all []contest) (err error) {
	var columns []string
	var lines []line
	for _, c := range all {
		c.rows = slices.DeleteFunc(c.rows, func(r row) bool { return o.only != nil && !o.only.MatchString(r.name) })
		if len(c.rows) == 0 {
			continue
		}
		var samples results
		samples, err = c.run(o, dir)
		for _, entrant := range c.contestants {
			if !slices.Contains(columns, entrant.name) {
				columns = append(columns, entrant.name)
			}
		}
		for _, r := range c.rows {
			lines = append(lines, r.lines(samples)...)
		}
		if err != nil {
			break
		}
	}
	printTable(w, columns, lines)
	return err
}

// results are the samples of the slices, in the order of the rounds.
type results map[key][]sample

type key struct{ contestant, row string }

// run starts every contestant and lets them take turns at each row.
func (c contest) run(o options, dir string) (results, error) {
	samples := results{}
	var fleets []*fleet
	defer func() {
		for _, f := range fleets {
			f.stop()
		}
	}()
	for _, entrant := range c.contestants {
		f, err := c.setup.start(dir, entrant, nil)
		fleets = append(fleets, f)
		if err != nil {
			return samples, fmt.Errorf("%s: %w", entrant.name, err)
		}
	}
	for round := range o.rounds + 1 {
		for _, r := range c.rows {
			warming := round == 0
			if round > r.times(o.rounds) || warming && r.sessions > many.sessions {
				continue
			}
			for i := range fleets {
				if round%2 == 1 { // change the order, so that nobody always follows the same contestant
					i = len(fleets) - 1 - i
				}
				entrant := c.contestants[i]
				if entrant.guest && !r.all {
					continue
				}
				length := cmp.Or(r.slice, o.slice)
				if warming {
					length /= 2
				}
				s, err := fleets[i].slice(r.load, length)
				if err != nil {
					return samples, fmt.Errorf("%s, %s: %w", entrant.name, r.name, err)
				}
				if !warming {
					samples[key{entrant.name, r.name}] = append(samples[key{entrant.name, r.name}], s)
				}
				fmt.Fprintf(os.Stderr, "round %d, %s, %s: %.0f calls/s, p50 %v, others %.0f %%\n",
					round, r.name, entrant.name, s.rate(), s.percentile(50).Round(10*time.Microsecond), 100*s.others)
			}
		}
	}
	return samples, nil
}

// start starts a contestant and waits until it has answered a batch. The caller must stop the
// fleet, also after an error.
func (s setup) start(dir string, c contestant, taps map[string]*tap) (*fleet, error) {
	f := &fleet{setup: s, taps: taps}
	var err error
	if f.dir, err = os.MkdirTemp(dir, "fleet-"); err != nil {
		return f, err
	}
	if err := c.start(f, c.binary); err != nil {
		return f, err
	}
	_, err = f.slice(one, 0)
	return f, err
}

// line is one metric of a row.
type line struct {
	name   string
	cells  map[string]cell // by contestant
	others []float64
}

// cell is the median of a metric, and the median of its ratios to the first contestant. A ratio is
// between slices of the same round.
type cell struct{ value, ratio float64 }

func (r row) lines(samples results) (lines []line) {
	for _, m := range r.metrics {
		values := map[string][]float64{}
		l := line{name: r.name + ": " + m.name, cells: map[string]cell{}}
		for k, own := range samples {
			if k.row != r.name {
				continue
			}
			for i, s := range own {
				var base sample
				if r.base != "" {
					base = samples[key{k.contestant, r.base}][i]
				}
				values[k.contestant] = append(values[k.contestant], m.of(s, base))
				l.others = append(l.others, s.others)
			}
		}
		for name, own := range values {
			var ratios []float64
			for i, v := range values["toolfleet"][:min(len(values["toolfleet"]), len(own))] {
				ratios = append(ratios, v/own[i])
			}
			l.cells[name] = cell{median(own), median(ratios)}
		}
		lines = append(lines, l)
	}
	return lines
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	if n == 0 {
		return 0
	}
	return (values[(n-1)/2] + values[n/2]) / 2
}

// printTable prints lines as a table in Markdown.
func printTable(w io.Writer, columns []string, lines []line) {
	fmt.Fprintf(w, "\nMedians. In brackets: the figure of toolfleet divided by this one. Others: share of the machine that other programs used, median and most.\n\n")
	fmt.Fprintf(w, "| | %s | others %% |\n|---|%s--:|\n", strings.Join(columns, " | "), strings.Repeat("--:|", len(columns)))
	for _, l := range lines {
		fmt.Fprintf(w, "| %s |", l.name)
		for i, column := range columns {
			c, ok := l.cells[column]
			switch {
			case !ok:
				fmt.Fprint(w, " |")
			case i == 0:
				fmt.Fprintf(w, " %s |", figure(c.value))
			default:
				fmt.Fprintf(w, " %s (%s) |", figure(c.value), figure(c.ratio))
			}
		}
		fmt.Fprintf(w, " %.0f, %.0f |\n", 100*median(l.others), 100*slices.Max(append(l.others, 0)))
	}
}

// figure prints a number with the digits that mean something.
func figure(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func split(addr string) (host, port string) {
	host, port, _ = net.SplitHostPort(addr)
	return host, port
}

// byTotal returns the keys of counts, the largest sum first.
func byTotal(counts map[string]map[string]float64) []string {
	total := func(name string) (sum float64) {
		for n := range maps.Values(counts[name]) {
			sum += n
		}
		return sum
	}
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(total(b), total(a)), strings.Compare(a, b))
	})
}
