package terminal

import "golang.org/x/sys/unix"

const (
	getTermios, setTermios = unix.TCGETS, unix.TCSETS
	noCharacter            = 0 // _POSIX_VDISABLE
)
