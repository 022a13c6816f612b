//go:build !unix

package kubectl

import "os"

// interrupt ends a process: there is no way to ask it.
func interrupt(p *os.Process) error { return p.Kill() }
