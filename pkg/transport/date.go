package transport

import (
	"net/http"
	"sync/atomic"
	"time"
)

// DateCache returns values for Date fields (RFC 9110 section 6.6.1). The zero value is ready to use. It
// is safe for concurrent use.
type DateCache struct{ last atomic.Pointer[second] }

// second is a field value that is valid for one second.
type second struct {
	unix  int64
	value string
}

// Now returns the value for the current time.
func (d *DateCache) Now() string {
	now := time.Now()
	s := d.last.Load()
	if s == nil || s.unix != now.Unix() {
		s = &second{now.Unix(), now.UTC().Format(http.TimeFormat)}
		d.last.Store(s)
	}
	return s.value
}
