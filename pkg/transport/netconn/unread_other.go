//go:build !linux

package netconn

import "math"

// Unread returns math.MaxInt, because the number of bytes in the receive buffer is not known on this platform.
func Unread(uintptr) int { return math.MaxInt }

// ReceiveBuffer returns 0, because the size is not needed on this platform.
func ReceiveBuffer(uintptr) int { return 0 }

// Ended returns false, because this platform does not report whether the peer has closed its side of the
// connection.
func Ended(uintptr) bool { return false }
