// Package rootdir confines file tools to one folder.
//
// Every access goes through os.Root: the operating system refuses "..", absolute paths and
// symbolic links that lead out of the folder. No code compares path strings for this. Pipes,
// sockets and devices are never opened. A file is replaced as a whole by a rename. A reader,
// or a restart after a crash, thus finds either the old content or the new. Only hard links
// can still lead out of the folder.
package rootdir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

const (
	// MaxPath is how many bytes a path may have. The schemas have the same limit.
	MaxPath  = 4096
	maxDepth = 255 // folders in a path: each access walks all of them
	maxLinks = 16  // symbolic links that a write follows to the file that it replaces
	shown    = 200 // characters of a path that an error repeats
)

// Root is the working folder of the file tools. A worker has one. Safe for concurrent use.
type Root struct {
	dir string // canonical and absolute
	// given is the absolute path as the operator wrote it, with symbolic links not
	// resolved.
	given string
	fs    *os.Root
	mu    sync.Mutex // see Lock
	// protected are paths that may not be changed, relative to dir and with slashes.
	protected []string
	// hidden are paths that may not be read, in the same form.
	hidden []string
}

// Open opens the folder to which the file tools are confined.
func Open(dir string) (*Root, error) {
	given, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	canonical, err := filepath.EvalSymlinks(given)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	root, err := os.OpenRoot(canonical)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	return &Root{dir: canonical, given: given, fs: root}, nil
}

// Dir returns the canonical absolute path of the folder.
func (r *Root) Dir() string { return r.dir }

// Close closes the folder. Calls that still run fail.
func (r *Root) Close() error { return r.fs.Close() }

// Stat describes the file at a path from Resolve. It follows links within the folder.
func (r *Root) Stat(rel string) (fs.FileInfo, error) { return r.fs.Stat(rel) }

// Lstat is like Stat, but does not follow a link at the end of the path.
func (r *Root) Lstat(rel string) (fs.FileInfo, error) { return r.fs.Lstat(rel) }

// Lock keeps other calls of this worker from changing files. An edit holds the lock from the
// read of the file to its write.
func (r *Root) Lock() { r.mu.Lock() }

// Unlock releases Lock.
func (r *Root) Unlock() { r.mu.Unlock() }

// Resolve returns the canonical form of a path that a model wrote. It is relative to the
// folder and has slashes; "." is the folder itself. Resolve checks only the text. os.Root
// checks links at each access.
func (r *Root) Resolve(name string) (string, error) {
	switch {
	case name == "":
		return "", base.Refuse(base.CodeInvalidPath, "the path is empty")
	case len(name) > MaxPath:
		return "", base.Refuse(base.CodeInvalidPath, "the path %s is %s bytes long (limit %s)", Quoted(name), base.Thousands(len(name)), base.Thousands(MaxPath))
	case strings.Count(name, "/") > maxDepth:
		return "", base.Refuse(base.CodeInvalidPath, "the path %s has more than %d folders", Quoted(name), maxDepth)
	case strings.ContainsRune(name, 0):
		return "", base.Refuse(base.CodeInvalidPath, "the path %s has a NUL character in it", Quoted(name))
	case strings.HasPrefix(name, "~/") || Disguised(name):
		return "", r.outside(name)
	}
	rel := name
	if filepath.IsAbs(name) {
		var ok bool
		if rel, ok = below(r.dir, name); !ok {
			if rel, ok = below(r.given, name); !ok {
				return "", r.outside(name)
			}
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(rel)) {
		return "", r.outside(name)
	}
	return path.Clean(filepath.ToSlash(rel)), nil
}

// below returns the part of an absolute path below dir. ok is false if the path is not below
// dir. Whole components are compared: /srv/app2 is not below /srv/app.
func below(dir, name string) (string, bool) {
	rel, err := filepath.Rel(dir, name)
	return rel, err == nil && filepath.IsLocal(rel)
}

// Disguised reports whether a path hides a ".." behind backslashes or percent signs. As a file
// name, such a path is harmless. But hardly anyone means such a name, and code that reads the
// path later may decode it.
func Disguised(name string) bool {
	plain := name
	for range 3 {
		decoded, err := url.PathUnescape(plain)
		if err != nil || decoded == plain {
			break
		}
		plain = decoded
	}
	plain = strings.ReplaceAll(plain, `\`, "/")
	return plain != name && HasDotDot(plain) && !HasDotDot(name)
}

func HasDotDot(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

func (r *Root) outside(name string) error {
	return base.Refuse(base.CodePathOutsideRoot, "%s is outside the working folder. Use a path relative to the working folder, which is %s", Quoted(name), Quoted(r.dir))
}

// Quoted returns a path in the form for error texts: short, with control characters
// escaped.
func Quoted(name string) string {
	if short := fmt.Sprintf("%.*s", shown, name); short != name {
		return strconv.Quote(short) + "..."
	}
	return strconv.Quote(name)
}

// Failure turns an error of the operating system into a text for the model. name is the
// path as the model wrote it.
func (r *Root) Failure(name string, err error) error {
	var pathError *fs.PathError
	var linkError *os.LinkError
	var told *messages.Error
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &pathError):
		err = pathError.Err // leave out the path, which may be 10 KB long
	case errors.As(err, &linkError):
		err = linkError.Err
	}
	switch {
	case err.Error() == "path escapes from parent": // package os does not export this error
		return r.outside(name)
	case Missing(err):
		return base.Refuse(base.CodeNotFound, "%s does not exist in the working folder", Quoted(name))
	case errors.Is(err, fs.ErrPermission):
		return base.Refuse(base.CodePermissionDenied, "%s: %v", Quoted(name), err)
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP), errors.Is(err, fs.ErrInvalid):
		return base.Refuse(base.CodeInvalidPath, "%s: %v", Quoted(name), err)
	case errors.Is(err, syscall.EISDIR):
		return base.Refuse(base.CodeNotAFile, "%s is a folder", Quoted(name))
	}
	return fmt.Errorf("%s: %w", Quoted(name), err)
}

// Missing reports whether an error means that there is no file or folder with that name.
func Missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// OpenFile opens a regular file for reading and refuses everything else. It checks the file
// before it opens it, because opening a device may have an effect. It checks again
// afterwards, because another file may have got the name. With O_NONBLOCK the open does not
// block if the file was replaced by a pipe.
func (r *Root) OpenFile(name, rel string) (*os.File, fs.FileInfo, error) {
	real, err := r.unhidden(name, rel)
	if err != nil {
		return nil, nil, err
	}
	info, err := r.fs.Stat(rel)
	if err != nil {
		return nil, nil, r.Failure(name, err)
	}
	if err := WantFile(name, info); err != nil {
		return nil, nil, err
	}
	f, err := r.fs.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, r.Failure(name, err)
	}
	info, err = f.Stat()
	if err == nil {
		err = WantFile(name, info)
	}
	if err == nil {
		err = r.isOpen(name, real, info)
	}
	if err != nil {
		f.Close()
		return nil, nil, r.Failure(name, err)
	}
	return f, info, nil
}

func WantFile(name string, info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return base.Refuse(base.CodeNotAFile, "%s is a folder, not a file. Use Glob to list what is in it", Quoted(name))
	case mode&fs.ModeNamedPipe != 0:
		return base.Refuse(base.CodeNotAFile, "%s is a named pipe, not a regular file", Quoted(name))
	case mode&fs.ModeSocket != 0:
		return base.Refuse(base.CodeNotAFile, "%s is a socket, not a regular file", Quoted(name))
	}
	return base.Refuse(base.CodeNotAFile, "%s is a device, not a regular file", Quoted(name))
}

// ReadDir returns the entries of a folder, sorted by name.
func (r *Root) ReadDir(rel string) ([]fs.DirEntry, error) {
	if _, err := r.unhidden(rel, rel); err != nil {
		return nil, err
	}
	f, err := r.fs.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return sortedEntries(f)
}

// target returns the file that a write to rel replaces: rel itself or, so that the link
// stays, the file to which a symbolic link leads. info is nil if the file does not exist.
func (r *Root) target(name, rel string) (string, fs.FileInfo, error) {
	for range maxLinks {
		info, err := r.fs.Lstat(rel)
		switch {
		case Missing(err):
			return rel, nil, nil
		case err != nil:
			return "", nil, r.Failure(name, err)
		case info.Mode()&fs.ModeSymlink == 0:
			if err := WantFile(name, info); err != nil {
				return "", nil, err
			}
			if info.Mode().Perm()&0o222 == 0 {
				return "", nil, base.Refuse(base.CodePermissionDenied, "%s is read-only", Quoted(name))
			}
			return rel, info, nil
		}
		link, err := r.fs.Readlink(rel)
		if err != nil {
			return "", nil, r.Failure(name, err)
		}
		if filepath.IsAbs(link) {
			return "", nil, r.outside(name)
		}
		// Do not clean the path: after a folder that is a link, ".." is the real parent of
		// the link's target.
		rel = dirOf(rel) + filepath.ToSlash(link)
	}
	return "", nil, base.Refuse(base.CodeInvalidPath, "%s: too many symbolic links", Quoted(name))
}

// dirOf returns rel up to and including its last slash.
func dirOf(rel string) string { return rel[:strings.LastIndexByte(rel, '/')+1] }

// Writable returns nil if rel can be written: it is a file or does not exist, and its
// folder exists or can be created.
func (r *Root) Writable(name, rel string) error {
	rel, info, err := r.target(name, rel)
	if err != nil {
		return err
	}
	if real, err := r.real(name, rel); err == nil {
		err = r.refusal(name, real)
		if err != nil || info != nil {
			return err
		}
	} else if info != nil {
		return err
	}
	for dir := strings.TrimSuffix(dirOf(rel), "/"); dir != ""; dir = strings.TrimSuffix(dirOf(dir), "/") {
		info, err := r.fs.Stat(dir)
		switch {
		case err == nil && info.IsDir():
			return nil
		case err == nil:
			return base.Refuse(base.CodeNotAFolder, "%s cannot be created: %s is not a folder", Quoted(name), Quoted(dir))
		case !Missing(err):
			return r.Failure(name, err)
		}
	}
	return nil
}

// Replace gives the file at rel new content in one step and keeps its permissions. If there
// is no file, it creates the file and its folders, and created is true.
//
// was is the file from which the content was made. If it was replaced or has changed since,
// Replace changes nothing and returns an error with CodeChanged. With a nil was, Replace
// replaces any file.
func (r *Root) Replace(name, rel string, content []byte, was fs.FileInfo) (created bool, err error) {
	rel, info, err := r.target(name, rel)
	if err != nil {
		return false, err
	}
	if rel, err = r.real(name, rel); err != nil {
		return false, err
	}
	if err := r.refusal(name, rel); err != nil {
		return false, err
	}
	dir, err := r.folder(name, rel)
	if err != nil {
		return false, r.Failure(name, err)
	}
	defer dir.Close()
	temp, file := TempPrefix+rand.Text(), path.Base(rel)
	if err := writeTemp(dir, temp, content, info); err != nil {
		dir.Remove(temp)
		return false, r.Failure(name, err)
	}
	if was != nil && !unchanged(dir, file, was) {
		dir.Remove(temp)
		return false, &messages.Error{Code: base.CodeChanged, Retryable: true, Message: Quoted(name) + " was changed by somebody else during the edit. Read it again"}
	}
	if err := dir.Rename(temp, file); err != nil {
		dir.Remove(temp)
		return false, r.Failure(name, err)
	}
	return info == nil, nil
}

// TempPrefix begins the names of unfinished files. Searches leave them out.
const TempPrefix = ".toolfleet-tmp-"

// writeTemp writes a new file with the permissions of the file old. The content is on disk
// before the file gets its name. After a power loss, the name thus has the old content or the
// new.
func writeTemp(dir *os.Root, name string, content []byte, old fs.FileInfo) error {
	perm := fs.FileMode(0o666)
	if old != nil {
		perm = old.Mode().Perm()
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && old != nil {
		err = f.Chmod(perm) // the umask removed permissions when the file was made
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func unchanged(dir *os.Root, name string, was fs.FileInfo) bool {
	now, err := dir.Lstat(name)
	return err == nil && os.SameFile(now, was) && now.Size() == was.Size() && now.ModTime().Equal(was.ModTime())
}

func sortedEntries(f *os.File) ([]fs.DirEntry, error) {
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}
