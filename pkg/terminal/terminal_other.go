//go:build !linux && !darwin

package terminal

import (
	"errors"
	"os"
)

// Is reports whether a file is a terminal.
func Is(*os.File) bool { return false }

func quiet(*os.File) (restore func() error, err error) { return nil, errors.ErrUnsupported }

func size(*os.File) (width, height int) { return 0, 0 }

func notifyResized(chan<- os.Signal) {}
