package harness

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// A recorder is a testing.TB that stores its last failure.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Errorf(format string, args ...any) { r.failed = fmt.Sprintf(format, args...) }
func (r *recorder) Fatal(args ...any)                 { r.failed = fmt.Sprint(args...) }

func TestFailureMessages(t *testing.T) {
	for _, c := range []struct {
		compare func(t testing.TB)
		want    string
	}{
		{func(t testing.TB) { Equal(t, 1, 2, "requests", 7, "in flight") }, "requests 7 in flight: got 1, want 2"},
		{func(t testing.TB) { Equal(t, 1, 2, "path", "", "\r\n") }, `path "" "\r\n": got 1, want 2`},
		{func(t testing.TB) { Equal(t, "a b", "") }, `got "a b", want ""`},
		{func(t testing.TB) { Equal(t, "a\nb", "c", "body") }, "body: got\na\nb\nwant\n\"c\""},
		{func(t testing.TB) { Equal(t, []string{"a"}, []string{"a", "b"}) }, `got ["a"], want ["a" "b"]`},
		{func(t testing.TB) { Equal(t, []int{1}, nil) }, "got [1], want []"},
		{func(t testing.TB) { Equal(t, map[string]int{}, map[string]int{"a": 1}) }, "got map[], want map[a:1]"},
		{func(t testing.TB) { Equal(t, errors.New("EOF"), io.EOF) }, "got EOF, want EOF"},
		{func(t testing.TB) { Equal[error](t, io.EOF, nil) }, "got EOF, want <nil>"},
		{func(t testing.TB) { NoError(t, io.EOF) }, "EOF"},
		{func(t testing.TB) { NoError(t, io.EOF, "replica", 2) }, "replica 2: EOF"},
		{func(t testing.TB) { Contains(t, "abc", "d", "body") }, `body: got "abc", want it to contain "d"`},
		{func(t testing.TB) { Contains(t, "abc", "c") }, ""},
		{func(t testing.TB) { Equal(t, []byte(nil), []byte{}) }, ""},
		{func(t testing.TB) { Equal(t, map[string][]int{"a": {1}}, map[string][]int{"a": {1}}) }, ""},
		{func(t testing.TB) { Equal[error](t, nil, nil) }, ""},
		{func(t testing.TB) { Equal(t, io.EOF, io.EOF) }, ""},
		{func(t testing.TB) { NoError(t, nil) }, ""},
	} {
		r := new(recorder)
		c.compare(r)
		if r.failed != c.want {
			t.Errorf("got failure %q, want %q", r.failed, c.want)
		}
	}
}
