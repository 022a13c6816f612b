package terminal

import "golang.org/x/sys/unix"

const (
	getTermios, setTermios = unix.TIOCGETA, unix.TIOCSETA
	noCharacter            = 0xff // _POSIX_VDISABLE
)
