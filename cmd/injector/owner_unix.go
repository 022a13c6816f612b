//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner sets the owner of a new file to the owner of the file that it replaces, if this is
// permitted.
func keepOwner(f *os.File, info fs.FileInfo) {
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(owner.Uid), int(owner.Gid)) // ignore the error, because Chown requires root
	}
}
