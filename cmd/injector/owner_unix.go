//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives a new file the owner of the one whose place it takes, where that is allowed.
func keepOwner(f *os.File, info fs.FileInfo) {
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(owner.Uid), int(owner.Gid)) // for root alone
	}
}
