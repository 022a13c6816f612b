package forward

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Date makes Date fields (RFC 9110 section 6.6.1). The zero value is ready. It is safe
// for concurrent use.
type Date struct{ last atomic.Pointer[second] }

// second is the value of the field in one second.
type second struct {
	unix  int64
	value string
}

// Now returns the field's value of now.
func (d *Date) Now() string {
	now := time.Now()
	s := d.last.Load()
	if s == nil || s.unix != now.Unix() {
		s = &second{now.Unix(), now.UTC().Format(http.TimeFormat)}
		d.last.Store(s)
	}
	return s.value
}
