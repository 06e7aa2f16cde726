package search

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// walker visits the files below a folder in the order of names. It visits the files of a
// subfolder at the subfolder's place in that order. It does not follow links into folders,
// obeys every .gitignore from the root down, and always skips .git. The start folder is
// visited even if a .gitignore names it, because the call asked for it. A folder that is
// deleted before it is listed counts as empty.
type walker struct {
	root  *rootdir.Root
	links bool // visit symbolic links that lead to a file inside the root
	visit func(file string) error
	// levels is the largest number of components, from the root, that a wanted path has. 0:
	// any number.
	levels int

	ignored    int // entries skipped because of a .gitignore; a folder counts as one
	unreadable int // folders that could not be listed
}

// walk visits every file below the folder start. It returns the error of visit, or the
// cause of ctx's end.
func (w *walker) walk(ctx context.Context, start string) error {
	if slices.Contains(strings.Split(start, "/"), ".git") {
		return nil
	}
	var rules *ignorer
	if start != "." {
		rules = loadIgnore(w.root, ".", nil)
		for i, c := range start {
			if c == '/' {
				rules = loadIgnore(w.root, start[:i], rules)
			}
		}
	}
	return w.folder(ctx, start, rules)
}

func (w *walker) folder(ctx context.Context, dir string, rules *ignorer) error {
	entries, err := w.root.ReadDir(dir)
	if errors.Is(err, fs.ErrPermission) {
		w.unreadable++
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ".gitignore" }) {
		rules = loadIgnore(w.root, dir, rules)
	}
	for _, e := range entries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		name := e.Name()
		if name == ".git" || strings.HasPrefix(name, rootdir.TempPrefix) {
			continue
		}
		path := name
		if dir != "." {
			path = dir + "/" + name
		}
		if rules.ignored(path, name, e.IsDir()) {
			w.ignored++
			continue
		}
		if e.IsDir() {
			if w.levels > 0 && strings.Count(path, "/")+2 > w.levels {
				continue
			}
			err = w.folder(ctx, path, rules)
		} else if w.wanted(path, e) {
			err = w.visit(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) wanted(path string, e fs.DirEntry) bool {
	if e.Type()&fs.ModeSymlink == 0 || !w.links {
		return e.Type().IsRegular()
	}
	info, err := w.root.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
