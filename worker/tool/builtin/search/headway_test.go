package search

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

// slowly is a context whose Err takes a pause, so that a search that calls Err at every file
// is slow.
type slowly struct {
	context.Context
	pause time.Duration
}

func (s slowly) Err() error {
	time.Sleep(s.pause)
	return s.Context.Err()
}

// A long search reports its progress at intervals, if there is any. A short search reports
// nothing.
func TestSearchesTellHowFarTheyAre(t *testing.T) {
	files := map[string]string{}
	for i := range 80 {
		files[fmt.Sprintf("%03d.txt", i)] = "a line\n"
	}
	root := folder(t, files)
	const slow, quick = 9700 * time.Microsecond, 3 * time.Millisecond // no multiple of slow falls on the instant of a report
	for _, test := range []struct {
		name  string
		args  in
		pause time.Duration
		want  []string
	}{
		{"Glob", in{"pattern": "06*"}, quick, nil},
		{"Glob", in{"pattern": "06*"}, slow, []string{
			"51 files looked at, 0 files found",
			"61 files looked at, 1 file found",
			"72 files looked at, 10 files found",
		}},
		{"Grep", in{"pattern": "line"}, quick / 10, nil},
		{"Grep", in{"pattern": "line", "glob": "*1.txt"}, slow, []string{
			"46 files looked at, 0 files found",
			"55 files looked at, 0 files found",
			"64 files looked at, 0 files found",
			"76 files looked at, 0 files found",
		}},
		{"Grep", in{"pattern": "line", "output_mode": "content"}, slow, []string{
			"8 files looked at, 0 lines found",
			"24 files looked at, 0 lines found",
			"36 files looked at, 0 lines found",
			"52 files looked at, 0 lines found",
			"64 files looked at, 64 lines found",
			"68 files looked at, 64 lines found",
		}},
		{"Grep", in{"pattern": "line", "path": "001.txt"}, 100 * slow, []string{"1 file looked at, 0 files found"}}, // each call of Err takes about a second
	} {
		t.Run(fmt.Sprint(test.name, test.args, test.pause), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runner := tools.New(t, test.name, root)
				var got []string
				call := callOf(t, test.name, test.args)
				call.Progress = func(p messages.Progress) { got = append(got, p.Text) }
				if _, err := runner.Run(slowly{t.Context(), test.pause}, call); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		})
	}
}
