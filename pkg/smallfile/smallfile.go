// Package smallfile reads small files that somebody else has put there: certificates and
// the like.
package smallfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Read returns the content of a regular file of at most most bytes. Symbolic links are
// followed. Every error names the file.
//
// Anything else than a regular file is an error at once. To open a named pipe waits for
// somebody who writes, without an end, and to open a device may do anything.
func Read(path string, most int64) ([]byte, error) {
	if err := regular(path, os.Stat); err != nil {
		return nil, err
	}
	// In between it may have become another file. O_NONBLOCK keeps a pipe from waiting;
	// a regular file knows nothing of it.
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

// regular says what path is if it is no regular file.
func regular(path string, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(path)
	if err != nil {
		if named, is := errors.AsType[*fs.PathError](err); is {
			named.Op = "open" // as who asks for the content knows it
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
