package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// watch kills the tree when its processes together exceed a limit. It returns that limit in
// words, or "" when done is closed.
func (t *tree) watch(policy sandbox.Policy, every time.Duration, done <-chan struct{}) string {
	bounds := policy.Limit
	if bounds.Memory <= 0 && bounds.Processes <= 0 && bounds.Disk <= 0 {
		return ""
	}
	disk := newDisk(policy)
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-done:
			return ""
		case <-ticks.C:
		}
		why := t.used().over(bounds)
		if why == "" {
			why = disk.over(time.Now())
		}
		if why != "" {
			t.kill()
			return why
		}
	}
}

// usage is what the processes of a tree use together.
type usage struct {
	memory  int64 // bytes, without the pages of files
	threads int
}

func (t *tree) used() (u usage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, st := range t.members() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.pid))
		if err != nil {
			continue
		}
		u.memory += (statusField(text, "RssAnon:") + statusField(text, "RssShmem:")) << 10
		u.threads += int(statusField(text, "Threads:"))
	}
	return u
}

// statusField reads a number from /proc/<pid>/status.
func statusField(text []byte, name string) int64 {
	_, rest, _ := bytes.Cut(text, []byte("\n"+name))
	fields := bytes.Fields(rest[:max(0, bytes.IndexByte(rest, '\n'))])
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(string(fields[0]), 10, 64)
	return n
}

func (u usage) over(bounds sandbox.Bounds) string {
	switch {
	case bounds.Memory > 0 && u.memory > bounds.Memory:
		return fmt.Sprintf("its processes had more than %s of memory", sandbox.Size(bounds.Memory))
	case bounds.Processes > 0 && u.threads > bounds.Processes:
		return fmt.Sprintf("it had more than %d processes", bounds.Processes)
	}
	return ""
}
