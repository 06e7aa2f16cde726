package rootdir

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

// Protect names paths that may be read but not changed, together with everything below
// them. Every .git, at any depth, is protected too. Paths outside the folder are ignored.
// Call Protect before any call runs.
func (r *Root) Protect(names []string) {
	for _, name := range names {
		for _, dir := range []string{r.dir, r.given} {
			if rel, ok := below(dir, name); ok && rel != "." {
				r.protected = append(r.protected, filepath.ToSlash(rel))
				break
			}
		}
	}
}

// Hide names files and folders that no tool may read, such as the worker's keys. Paths
// outside the folder are ignored. Call Hide before any call runs.
func (r *Root) Hide(names []string) {
	for _, name := range names {
		for _, dir := range []string{r.dir, r.given} {
			if rel, ok := below(dir, name); ok && rel != "." {
				r.hidden = append(r.hidden, filepath.ToSlash(rel))
				break
			}
		}
	}
}

// unhidden returns a path with its links resolved, or an error if it is hidden. It returns
// "" if nothing is hidden at all.
func (r *Root) unhidden(name, rel string) (real string, err error) {
	if len(r.hidden) == 0 {
		return "", nil
	}
	if real, err = r.real(name, rel); err != nil {
		return "", err
	}
	folded := strings.ToLower(real) + "/"
	for _, h := range r.hidden {
		if strings.HasPrefix(folded, strings.ToLower(h)+"/") {
			return "", secret(name)
		}
	}
	return real, nil
}

// isOpen checks a file that was opened: it must be the file at the path real, which has no
// links, and must not be a hidden file under another name. A command may change links while
// the file is being opened.
func (r *Root) isOpen(name, real string, opened fs.FileInfo) error {
	if len(r.hidden) == 0 {
		return nil
	}
	if now, err := r.fs.Lstat(cmp.Or(real, ".")); err != nil || !os.SameFile(now, opened) {
		return &messages.Error{Code: base.CodeChanged, Retryable: true, Message: Quoted(name) + " was replaced while it was opened. Read it again"}
	}
	for _, h := range r.hidden {
		if info, err := r.fs.Stat(h); err == nil && os.SameFile(info, opened) {
			return secret(name)
		}
	}
	return nil
}

func secret(name string) error {
	return base.Refuse(base.CodePermissionDenied, "%s belongs to the worker and may not be read", Quoted(name))
}

// refusal returns an error if a path (without links) may not be changed, otherwise nil. It
// ignores case, as some file systems do.
func (r *Root) refusal(name, real string) error {
	if len(r.protected) == 0 {
		return nil
	}
	folded := strings.ToLower(real) + "/"
	for _, p := range append([]string{".git"}, r.protected...) {
		if strings.HasPrefix(folded, strings.ToLower(p)+"/") {
			return guarded(name)
		}
	}
	if strings.Contains(folded, "/.git/") {
		return guarded(name)
	}
	return nil
}

func guarded(name string) error {
	return base.Refuse(base.CodePermissionDenied, "%s may be read and not changed, because other programs run or obey it", Quoted(name))
}

// real resolves the links in a path, as far as the path exists.
func (r *Root) real(name, rel string) (string, error) {
	real, rest, links, missing := "", rel, 0, false
	for rest != "" {
		var first string
		first, rest, _ = strings.Cut(rest, "/")
		switch {
		case first == "" || first == ".":
			continue
		case first == ".." && missing:
			return "", r.Failure(name, fs.ErrNotExist)
		case first == ".." && real == "":
			return "", r.outside(name)
		case first == "..":
			if real = path.Dir(real); real == "." {
				real = ""
			}
			continue
		}
		next := path.Join(real, first)
		if missing {
			real = next
			continue
		}
		info, err := r.fs.Lstat(next)
		switch {
		case Missing(err):
			missing = true
		case err != nil:
			return "", r.Failure(name, err)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := r.fs.Readlink(next)
			if err != nil {
				return "", r.Failure(name, err)
			}
			if filepath.IsAbs(target) {
				return "", r.outside(name)
			}
			if links++; links > maxLinks {
				return "", base.Refuse(base.CodeInvalidPath, "%s: too many symbolic links", Quoted(name))
			}
			rest = filepath.ToSlash(target) + "/" + rest
			continue
		}
		real = next
	}
	return real, nil
}

// folder opens the folder of a path (without links) for a write, and makes missing folders. A
// command may put links into the path meanwhile. Therefore folder opens each folder from the
// one above it, and refuses the write if another folder has taken the name by then.
func (r *Root) folder(name, real string) (*os.Root, error) {
	guard := r.guard()
	here, err := r.fs.OpenRoot(".")
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(dirOf(real), "/"), "/") {
		if part == "" {
			continue
		}
		next, err := enter(name, here, part)
		here.Close()
		if err != nil {
			return nil, err
		}
		here = next
		if err := guard.folder(name, here); err != nil {
			here.Close()
			return nil, err
		}
	}
	if err := guard.file(name, here, path.Base(real)); err != nil {
		here.Close()
		return nil, err
	}
	return here, nil
}

// enter opens a folder inside another one. If it is missing, enter makes it.
func enter(name string, in *os.Root, part string) (*os.Root, error) {
	next, err := in.OpenRoot(part)
	if errors.Is(err, fs.ErrNotExist) {
		if err := in.Mkdir(part, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		next, err = in.OpenRoot(part)
	}
	if err != nil {
		return nil, err
	}
	named, err := in.Lstat(part)
	if err == nil {
		var opened fs.FileInfo
		if opened, err = next.Stat("."); err == nil && os.SameFile(named, opened) {
			return next, nil
		}
	}
	next.Close()
	if err == nil || errors.Is(err, syscall.ELOOP) {
		err = &messages.Error{Code: base.CodeChanged, Retryable: true, Message: Quoted(name) + ": a folder of it was changed by somebody else during the write"}
	}
	return nil, err
}

// guard recognizes the protected files and folders under any name.
type guard []struct {
	itself, in fs.FileInfo // nil if it does not exist
	base       string
}

func (r *Root) guard() guard {
	g := make(guard, len(r.protected))
	for i, p := range r.protected {
		g[i].itself, _ = r.fs.Stat(p)
		g[i].in, _ = r.fs.Stat(path.Dir(p))
		g[i].base = path.Base(p)
	}
	return g
}

// folder refuses a protected folder.
func (g guard) folder(name string, dir *os.Root) error {
	if len(g) == 0 {
		return nil
	}
	info, err := dir.Stat(".")
	if err != nil {
		return err
	}
	for _, p := range g {
		if p.itself != nil && os.SameFile(p.itself, info) {
			return guarded(name)
		}
	}
	return nil
}

// file refuses a protected file in a folder.
func (g guard) file(name string, dir *os.Root, file string) error {
	if len(g) == 0 {
		return nil
	}
	info, err := dir.Stat(".")
	if err != nil {
		return err
	}
	for _, p := range g {
		if p.in != nil && os.SameFile(p.in, info) && strings.EqualFold(p.base, file) {
			return guarded(name)
		}
	}
	return nil
}
