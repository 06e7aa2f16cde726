package sandbox

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MachineMemory returns how much memory this process may use, in bytes: the machine's memory,
// or the limit of its container. 0: it is not known.
func MachineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	total := int64(info.Totalram) * int64(info.Unit)
	for _, name := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if bound, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bound > 0 {
			total = min(total, bound)
		}
	}
	return total
}
