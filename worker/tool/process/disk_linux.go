package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// diskEvery is the time between two checks of a command's folders. If a check takes long,
// the pause after it is ten times as long.
const diskEvery = time.Second

// disk watches how much a command writes to its folders.
type disk struct {
	bound  int64 // bytes; 0: none
	temp   string
	others []string
	before int64 // size of others at the first check
	next   time.Time
}

func newDisk(p sandbox.Policy) *disk {
	return &disk{bound: p.Limit.Disk, temp: p.Temp, others: p.Measured, before: -1}
}

// over returns, in words, the limit that is exceeded. It returns "" if no limit is exceeded,
// or if it is too early to check.
func (d *disk) over(now time.Time) string {
	if d.bound <= 0 || now.Before(d.next) {
		return ""
	}
	temp, err := sizeOf(d.temp)
	var others int64
	for _, folder := range d.others {
		size, failed := sizeOf(folder)
		others, err = others+size, errors.Join(err, failed)
	}
	spent := time.Since(now)
	d.next = now.Add(max(diskEvery, 10*spent))
	if d.before < 0 {
		d.before = others
	}
	switch {
	case temp > d.bound:
		return fmt.Sprintf("its temporary files had more than %s", sandbox.Size(d.bound))
	case others-d.before > d.bound:
		return fmt.Sprintf("its state folders grew by more than %s", sandbox.Size(d.bound))
	case err != nil:
		return "the worker could not measure a folder that it may fill"
	}
	return ""
}

// sizeOf returns how many bytes the files of a folder take. A missing folder has none. An
// error means that a part of the folder is unreadable, so its size cannot be limited.
func sizeOf(folder string) (size int64, err error) {
	if folder == "" {
		return 0, nil
	}
	err = filepath.WalkDir(folder, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return err
			}
			return nil // the file was removed in the meantime
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			size += st.Blocks * 512
		}
		return nil
	})
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return size, err
}
