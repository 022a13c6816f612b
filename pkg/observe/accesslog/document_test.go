package accesslog

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestGuideListsFieldsInOrder(t *testing.T) {
	document, err := os.ReadFile("../../../docs/request-log.md")
	harness.NoError(t, err)
	_, table, ok := strings.Cut(string(document), "| field | meaning |")
	if !ok {
		t.Fatal("docs/request-log.md: got no table of fields, want one")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	var want []string
	for row := range strings.Lines(table) {
		if cells := strings.Split(row, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(cells[1], -1) {
				want = append(want, m[1])
			}
		}
	}

	o := get("/")
	l := &Log{tail: appendTail(nil, &Revision{"rev", "ns", "svc", "cfg", "pod", "ip"})}
	var got []string
	for _, m := range regexp.MustCompile(`[{,]"([A-Za-z]+)":`).FindAllSubmatch(l.appendJSON(nil, o, "id", "failed"), -1) {
		got = append(got, string(m[1]))
	}
	harness.Equal(t, got, want, "fields in docs/request-log.md")
}
