package natstest

import "syscall"

// minFreeMemory is how much memory must be free for a folder in memory. In containers, often
// only 64 MB are free.
const minFreeMemory = 2 << 30

// inMemory returns the folder of a file system in memory, or "".
func inMemory() string {
	const dir, tmpfs = "/dev/shm", 0x01021994
	var about syscall.Statfs_t
	if syscall.Statfs(dir, &about) != nil || about.Type != tmpfs || about.Bavail*uint64(about.Bsize) < minFreeMemory {
		return ""
	}
	return dir
}
