package bound_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// go test ./pkg/bound -update writes the tables of docs/bounds.md.
var update = flag.Bool("update", false, "rewrite the tables of docs/bounds.md")

const page = "../../docs/bounds.md"

func TestBoundsPageListsEveryBound(t *testing.T) {
	harness.Document(t, page, "bounds", "\n"+boundTable()+"\n", *update)
}

// boundTable lists what each bound closes, and its sentence for the operator.
func boundTable() string {
	var b strings.Builder
	b.WriteString("| bound | closes | cause, and what to do |\n|---|---|---|\n")
	for name := range bound.NumNames {
		fmt.Fprintf(&b, "| `%v` | %s | %s |\n", name, name.Closes(), name.Text())
	}
	return b.String()
}
