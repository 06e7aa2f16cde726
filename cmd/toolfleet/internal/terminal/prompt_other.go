//go:build !linux

package terminal

import "os"

func dropTyped(*os.File) {}
