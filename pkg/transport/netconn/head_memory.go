package netconn

// LongHead is the length in bytes above which a header section is charged to the memory budget. A
// shorter header section uses a pooled buffer.
const LongHead = 32 << 10

// HeadMemory is the part of a memory budget that a long header section uses until Release.
type HeadMemory struct {
	Account *Account // account of the client connection; nil means no limit

	held int // number of reserved bytes
}

// Reserve reserves the memory for the given number of copies of a header section of n bytes. If the budget is exhausted,
// it waits in the same way as [Account.Await] and then returns false. Reserve can be called again with a larger n.
func (m *HeadMemory) Reserve(n, copies int) bool {
	more := copies*n - m.held
	if n <= LongHead || more <= 0 {
		return true
	}
	if !m.Account.Await(more) {
		return false
	}
	m.held += more
	return true
}

// Release releases the reserved memory. It can be called more than once.
func (m *HeadMemory) Release() {
	m.Account.Sub(m.held)
	m.held = 0
}

// Held returns the number of reserved bytes.
func (m *HeadMemory) Held() int { return m.held }
