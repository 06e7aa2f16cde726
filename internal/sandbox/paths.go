package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// systemPaths lists paths that every command may read: programs, libraries, and the
// configuration that programs need to run at all. They hold no secrets.
var systemPaths = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu/store", "/snap",
	"/run/current-system", "/etc/static", "/etc/profiles",
	"/etc/alternatives", "/etc/bash.bashrc", "/etc/bashrc", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/crypto-policies",
	"/etc/default/locale", "/etc/environment", "/etc/ethertypes", "/etc/fonts", "/etc/gai.conf", "/etc/gitconfig", "/etc/group",
	"/etc/host.conf", "/etc/hostname", "/etc/hosts", "/etc/inputrc", "/etc/java", "/etc/ld.so.cache", "/etc/ld.so.conf",
	"/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/ld-musl-x86_64.path", "/etc/ld-musl-aarch64.path", "/etc/locale.alias",
	"/etc/locale.conf", "/etc/localtime", "/etc/login.defs", "/etc/lsb-release", "/etc/machine-id", "/etc/magic", "/etc/mailcap",
	"/etc/manpath.config", "/etc/mime.types", "/etc/networks", "/etc/nsswitch.conf", "/etc/openssl", "/etc/os-release",
	"/etc/passwd", "/etc/perl", "/etc/pki/tls", "/etc/pki/ca-trust", "/etc/profile", "/etc/profile.d", "/etc/protocols",
	"/etc/python", "/etc/python3", "/etc/resolv.conf", "/etc/rpc", "/etc/services", "/etc/shells", "/etc/skel", "/etc/ssl/certs",
	"/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem", "/etc/subgid", "/etc/subuid", "/etc/terminfo", "/etc/timezone", "/etc/vimrc",
	"/etc/vim", "/etc/wgetrc", "/etc/xattr.conf", "/etc/xdg",
	// What /etc/resolv.conf may link to.
	"/run/systemd/resolve/resolv.conf", "/run/systemd/resolve/stub-resolv.conf", "/run/resolvconf/resolv.conf",
	// Facts about processors and memory.
	"/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
}

// homePaths are below the home folder and may be read too. They are the configuration of git,
// which does not run without it, and the folders in which languages keep programs and
// libraries.
var homePaths = []string{
	".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes",
	".local/bin", ".local/lib", ".local/pipx", ".local/share/mise", ".local/share/uv", "go", ".cargo/bin", ".cargo/registry", ".rustup",
	".pyenv", ".rbenv", ".nvm", ".asdf", ".volta", ".bun/bin", ".deno/bin", ".sdkman/candidates",
}

// devices lists the devices that commands may read and write.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

// ProtectedPaths lists paths in a working folder that other programs run or obey. If a command
// could write there, it could act later, outside of its sandbox.
var ProtectedPaths = []string{
	".git/hooks", ".git/config", ".git/config.worktree", ".git/commondir", ".husky", ".github", ".vscode", ".idea", ".mcp.json", ".claude", ".cursor", ".envrc",
	".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv", ".zprofile",
	".zlogin", ".config/fish", ".gitconfig", ".config/git", ".ssh",
}

// gitFiles lists the files and folders of a repository that git obeys.
var gitFiles = []string{"hooks", "config", "config.worktree", "commondir"}

// mostGitFolders limits how many folders are searched for repositories.
const mostGitFolders = 2000

// ProtectedIn returns the [ProtectedPaths] of a folder and the other files in it that git
// obeys: a .git that is a file, and files in the repositories of submodules and working trees.
func ProtectedIn(folder string) (all []string) {
	for _, name := range ProtectedPaths {
		all = append(all, filepath.Join(folder, name))
	}
	git := filepath.Join(folder, ".git")
	if info, err := os.Lstat(git); err != nil || !info.IsDir() {
		if err == nil && info.Mode().IsRegular() {
			all = append(all, git)
		}
		return all
	}
	looked := 0
	for _, kind := range []string{"modules", "worktrees"} {
		_ = filepath.WalkDir(filepath.Join(git, kind), func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil // a folder that cannot be read is left out
			case slices.Contains(gitFiles, d.Name()):
				all = append(all, name)
			}
			if !d.IsDir() {
				return nil
			}
			looked++
			switch {
			case looked > mostGitFolders:
				return fs.SkipAll
			case slices.Contains(gitFiles, d.Name()), d.Name() == "objects", d.Name() == "refs", d.Name() == "logs":
				return fs.SkipDir
			}
			return nil
		})
	}
	return all
}

// services lists sockets of programs that act for their clients, and folders with such
// sockets. They are hidden if there is a mount namespace.
var services = []string{
	"/run/docker.sock", "/run/containerd", "/run/crio", "/run/podman", "/run/dbus", "/run/user", "/run/systemd/private",
	"/run/snapd.socket", "/run/snapd-snap.socket", "/run/libvirt", "/run/acpid.socket", "/tmp/.X11-unix", "/tmp/.ICE-unix",
}

// procFiles lists the files and folders in /proc that a command may read: those about the machine,
// and those about the process that reads.
var procFiles = []string{
	"/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/uptime", "/proc/loadavg", "/proc/version", "/proc/filesystems",
	"/proc/sys/kernel", "/proc/sys/vm", "/proc/sys/fs", "/proc/sys/net", "/proc/self",
}

// procSwitches lists files in /proc that change the kernel for all users. Without Landlock,
// root could write to them.
var procSwitches = []string{
	"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi", "/proc/mtrr",
}

// SystemPaths returns the paths that every command may read: paths of the system, the folders
// of PATH, and the paths of the home folder in homePaths.
func SystemPaths(home, path string) []string {
	all := slices.Clone(systemPaths)
	for _, dir := range filepath.SplitList(path) {
		if filepath.IsAbs(dir) && dir != "/" {
			all = append(all, filepath.Clean(dir))
		}
	}
	if filepath.IsAbs(home) {
		for _, name := range homePaths {
			all = append(all, filepath.Join(home, name))
		}
	}
	return all
}

// inside reports whether a path is the folder, or is below it.
func inside(name, folder string) bool {
	return name == folder || folder == "/" || strings.HasPrefix(name, folder+"/")
}

// insideAny reports whether a path is one of the folders, or is below one of them.
func insideAny(name string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return inside(name, f) })
}
