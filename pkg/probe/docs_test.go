package probe

import (
	"os"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestGuideListsWordsAndCurrentMessages(t *testing.T) {
	text, err := os.ReadFile("../../docs/probes.md")
	harness.NoError(t, err)
	page := string(text)
	for _, w := range observation.ReadinessWords() {
		if !strings.Contains(page, "\n| `"+string(w)+"` |") && !strings.Contains(page, "\n| `"+string(w)+" N` |") {
			t.Errorf("%s: no row in the table", w)
		}
	}
	if !strings.Contains(page, "`User-Agent: "+agent+"`") {
		t.Errorf("user agent %s is missing in the page", agent)
	}

	_, one := Parse(`{"httpGet":{"port":70000}}`, false)
	_, list := Parse(`[null,{"tcpSocket":{"port":"http"}},{}]`, true)
	for _, problem := range append(one, list...) {
		harness.Contains(t, page, "SERVING_READINESS_PROBE: "+problem.Error()+"\n", "missing line")
	}
}
