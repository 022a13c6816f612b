// This file reads regular files up to a maximum size.

package certs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// readSmallFile returns the content of a regular file that has at most the given number of bytes. It follows
// symbolic links. Each error contains the path of the file.
//
// readSmallFile returns an error for other types of files, because opening a named pipe waits for a writer, and
// opening a device may have side effects.
func readSmallFile(path string, most int64) ([]byte, error) {
	if err := regular(path, os.Stat); err != nil {
		return nil, err
	}
	// The file may be replaced with a pipe after the check. With O_NONBLOCK, OpenFile does not wait for the writer of
	// a pipe. The flag has no effect on a regular file.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := regular(path, func(string) (fs.FileInfo, error) { return f.Stat() }); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, most)
	}
	return content, err
}

// regular returns an error with the file type if path is not a regular file.
func regular(path string, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(path)
	if err != nil {
		if named, is := errors.AsType[*fs.PathError](err); is {
			named.Op = "open" // the operation that the caller requested
		}
		return err
	}
	kind := "special file"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		kind = "directory"
	case mode&fs.ModeNamedPipe != 0:
		kind = "named pipe"
	case mode&fs.ModeSocket != 0:
		kind = "socket"
	case mode&fs.ModeDevice != 0:
		kind = "device"
	}
	return fmt.Errorf("%s: not a regular file (%s)", path, kind)
}
