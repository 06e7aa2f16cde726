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

// mostLinks limits how many links are followed in one path. The kernel has the same limit.
const mostLinks = 40

// Settle resolves the links of an absolute path, as far as the path exists. It returns an
// error, which names the link, for a link inside one of the folders. A command may have made
// such a link, and could choose where it leads.
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

// settled returns the policy with links resolved in its readable paths. A path is left out if
// a link inside a writable folder leads to it. Other paths in writable folders need no rule.
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
