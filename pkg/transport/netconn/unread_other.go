//go:build !linux

package netconn

import "math"

// Unread returns the number of bytes in the receive buffer, which is not known on this platform. It
// returns the maximum.
func Unread(uintptr) int { return math.MaxInt }

// ReceiveBuffer returns 0, because the size is not needed on this platform.
func ReceiveBuffer(uintptr) int { return 0 }

// Ended reports whether the peer has closed its side of the connection, which is not known on this platform.
func Ended(uintptr) bool { return false }
