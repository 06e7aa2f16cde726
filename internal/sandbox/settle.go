package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mostLinks bounds the links of one path, as the kernel does.
const mostLinks = 40

// Settle returns an absolute path without its links, as far as the path is there. It follows no
// link below the folders: a command may have put it there, and the path would lead wherever the
// command wants. The error names that link.
func Settle(name string, folders []string) (string, error) {
	top := filepath.VolumeName(name) + string(filepath.Separator)
	real, rest, links := top, filepath.ToSlash(filepath.Clean(name)[len(top)-1:]), 0
	for {
		rest = strings.TrimLeft(rest, "/")
		if rest == "" {
			return real, nil
		}
		var first string
		first, rest, _ = strings.Cut(rest, "/")
		switch first {
		case ".":
			continue
		case "..":
			real = filepath.Dir(real)
			continue
		}
		next := filepath.Join(real, first)
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), err == nil && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0:
			return filepath.Join(next, rest), nil
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink == 0:
			real = next
			continue
		case insideAny(real, folders):
			return "", fmt.Errorf("%s is a link in a folder that commands may change, so %s may lead anywhere: put a folder there, or name the place that it leads to", next, name)
		}
		if links++; links > mostLinks {
			return "", fmt.Errorf("%s: too many links", name)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			real, target = top, target[len(filepath.VolumeName(target)):]
		}
		rest = filepath.ToSlash(target) + "/" + rest
	}
}

// settled returns a policy whose readable paths have no links. What lies in a folder that commands
// may change is left out if it is behind a link; the rest may be read with that folder.
func (p Policy) settled() Policy {
	folders := slices.Concat(p.Write, p.Loose)
	if p.Temp != "" {
		folders = append(folders, p.Temp)
	}
	var read []string
	for _, name := range p.Read {
		if real, err := Settle(name, folders); err == nil {
			read = append(read, real)
		}
	}
	slices.Sort(read)
	p.Read = slices.Compact(read)
	return p
}
