package rules

// A folder is a directory of the module with the directories that its production code can import.
// Paths are relative to the module.
type folder struct {
	path string
	may  []string
}

// plan lists the directories. A package can only import packages above it. The rules of
// the linter and the table in ARCHITECTURE.md are generated from it.
var plan = []folder{
	// Ground: nothing of ours.
	{path: "pkg/header"},
	{path: "pkg/stats", may: []string{"pkg/header"}},
	{path: "pkg/smallfile"},
	{path: "pkg/certs", may: []string{"pkg/smallfile"}},
	{path: "pkg/wire", may: []string{"pkg/header"}},
	{path: "pkg/hangup"},
	{path: "pkg/goaway"},
	{path: "pkg/socket"},
	{path: "pkg/fair"},
	{path: "pkg/connlimit", may: []string{"pkg/bound"}},
	{path: "pkg/portlimit", may: []string{"pkg/bound", "pkg/fair"}},
	{path: "pkg/loopback"},
	{path: "pkg/spelling"},
	{path: "pkg/printable"},
	{path: "pkg/sink"},
	{path: "pkg/cli", may: []string{"pkg/printable", "pkg/spelling"}},
	{path: "pkg/adapt"},
	{path: "pkg/bound"},
	{path: "pkg/memory", may: []string{"pkg/bound"}},
	{path: "pkg/link", may: []string{"pkg/bound", "pkg/fair", "pkg/socket"}},

	{path: "pkg/probe", may: []string{"pkg/header", "pkg/printable", "pkg/socket"}},
	{path: "pkg/queue", may: []string{"pkg/adapt", "pkg/fair", "pkg/header", "pkg/printable", "pkg/stats"}},
	{path: "pkg/forward", may: []string{"pkg/bound", "pkg/memory", "pkg/queue", "pkg/header", "pkg/wire", "pkg/goaway", "pkg/connlimit"}},
	{path: "pkg/upstream", may: []string{"pkg/bound", "pkg/queue", "pkg/forward", "pkg/header", "pkg/wire", "pkg/socket"}},
	{path: "pkg/h2", may: []string{"pkg/bound", "pkg/memory", "pkg/link", "pkg/wire", "pkg/socket"}},
	{path: "pkg/h2client", may: []string{"pkg/bound", "pkg/h2", "pkg/forward", "pkg/header", "pkg/wire", "pkg/link", "pkg/socket"}},

	// The engines do not know each other: http1 gives HTTP/2 connections away
	// through a func.
	{path: "pkg/http1", may: []string{"pkg/bound", "pkg/memory", "pkg/queue", "pkg/forward", "pkg/upstream", "pkg/h2client", "pkg/header", "pkg/wire", "pkg/hangup", "pkg/goaway", "pkg/link", "pkg/socket", "pkg/connlimit"}},
	{path: "pkg/http2", may: []string{"pkg/bound", "pkg/memory", "pkg/queue", "pkg/forward", "pkg/upstream", "pkg/h2", "pkg/h2client", "pkg/header", "pkg/wire", "pkg/goaway", "pkg/link", "pkg/socket", "pkg/connlimit"}},

	{path: "pkg/export", may: []string{"pkg/header", "pkg/printable"}},
	{path: "pkg/metrics", may: []string{"pkg/adapt", "pkg/bound", "pkg/fair", "pkg/loopback", "pkg/queue", "pkg/header", "pkg/export", "pkg/sink"}},
	{path: "pkg/tracing", may: []string{"pkg/queue", "pkg/header", "pkg/export", "pkg/sink"}},
	{path: "pkg/accesslog", may: []string{"pkg/queue", "pkg/header", "pkg/sink", "pkg/socket"}},

	{path: "pkg/status", may: []string{"pkg/adapt", "pkg/bound", "pkg/fair", "pkg/loopback", "pkg/printable", "pkg/probe", "pkg/queue"}},
	{path: "pkg/config", may: []string{"pkg/adapt", "pkg/printable", "pkg/probe", "pkg/header", "pkg/spelling"}},
	{path: "pkg/inject", may: []string{"pkg/config", "pkg/printable", "pkg/probe", "pkg/header", "pkg/spelling"}},
	{path: "pkg/inject/manifest", may: []string{"pkg/inject", "pkg/printable"}},
	{path: "pkg/inject/webhook", may: []string{"pkg/inject", "pkg/certs", "pkg/portlimit", "pkg/printable", "pkg/sink"}},
	{path: "pkg/sidecar", may: []string{
		"pkg/adapt", "pkg/memory", "pkg/bound", "pkg/header", "pkg/stats", "pkg/certs", "pkg/wire", "pkg/hangup", "pkg/goaway", "pkg/link", "pkg/loopback", "pkg/socket", "pkg/connlimit", "pkg/fair", "pkg/portlimit", "pkg/probe", "pkg/queue", "pkg/forward", "pkg/upstream",
		"pkg/h2client", "pkg/http1", "pkg/http2", "pkg/export", "pkg/metrics", "pkg/tracing", "pkg/accesslog", "pkg/status", "pkg/config", "pkg/sink",
	}},

	// What shows the sidecars of a cluster, from outside of it.
	{path: "pkg/top", may: []string{"pkg/config", "pkg/printable"}},
	{path: "pkg/cluster", may: []string{"pkg/top"}},

	{path: "cmd/queue-proxy", may: []string{"pkg/config", "pkg/sidecar", "pkg/spelling", "pkg/status"}},
	{path: "cmd/injector", may: []string{"pkg/cli", "pkg/printable", "pkg/inject", "pkg/inject/manifest", "pkg/inject/webhook"}},
	{path: "cmd/kubectl-queue_proxy", may: []string{"pkg/cli", "pkg/cluster", "pkg/printable", "pkg/top"}},
	{path: "hack/sbom"},
	{path: "hack/release"},
	{path: "hack/chart"},
	{path: "hack/workloads"},

	// For tests and plots alone.
	{path: "test/limits/simulation", may: []string{"pkg/adapt"}},
	{path: "test/limits/measure", may: []string{"test/limits/simulation"}},

	// For tests alone. What all of them share is test/harness, which imports nothing of ours.
	{path: "test/reference", may: []string{"pkg/queue", "pkg/forward", "pkg/upstream", "pkg/h2client", "pkg/header", "pkg/wire"}},
	{path: "test/proxytest", may: []string{
		"pkg/bound", "pkg/memory", "pkg/queue", "pkg/stats", "pkg/forward", "pkg/upstream", "pkg/h2client", "pkg/wire", "pkg/hangup", "pkg/http1", "pkg/http2", "test/harness", "test/reference",
	}},
	{path: "test/streams"}, // only tests
}

// outside lists the folders that meet the programs only from outside, over
// sockets and files: no file in or below them, tests included, imports
// anything of ours but what else is under test/.
var outside = []string{
	"test/app",
	"test/bench",
	"test/cluster",
	"test/conformance",
	"test/e2e",
	"test/harness",
	"test/soak",
	"test/ledger",
	"test/rules",
}

// An importer is an outside module, or a family of them, and the folders whose
// production code may import it. Tests may import any.
type importer struct {
	prefix  string
	folders []string
}

// importers lists every outside module that production code may use. A module that
// matches no prefix is not let in anywhere.
var importers = []importer{
	{prefix: "github.com/kelseyhightower/envconfig", folders: []string{"pkg/config"}},
	{prefix: "github.com/prometheus/client_model", folders: []string{"pkg/metrics", "pkg/top"}},
	{prefix: "github.com/prometheus/common", folders: []string{"pkg/metrics", "pkg/top"}},
	{prefix: "github.com/prometheus/", folders: []string{"pkg/metrics", "pkg/inject/webhook"}},
	{prefix: "github.com/rogpeppe/go-internal/diff", folders: []string{"cmd/injector"}},
	{prefix: "github.com/spf13/", folders: []string{"pkg/cli", "cmd/injector", "cmd/kubectl-queue_proxy"}},
	{prefix: "go.opencensus.io", folders: []string{"pkg/tracing"}},
	// The messages of OTLP; those of its services, under collector/, would bring grpc.
	{prefix: "go.opentelemetry.io/proto/otlp/", folders: []string{"pkg/export", "pkg/metrics", "pkg/tracing"}},
	{prefix: "google.golang.org/protobuf/", folders: []string{"pkg/export", "pkg/metrics", "pkg/probe", "pkg/tracing"}},
	{prefix: "charm.land/", folders: []string{"cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/cli-runtime/", folders: []string{"pkg/cluster", "cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/client-go/", folders: []string{"pkg/cluster", "cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/streaming/", folders: []string{"pkg/cluster"}},
	{prefix: "k8s.io/", folders: []string{"pkg/inject", "pkg/inject/webhook", "pkg/cluster", "pkg/top"}},
	{prefix: "sigs.k8s.io/", folders: []string{"pkg/inject", "pkg/inject/webhook"}},
	// The one library that tells where in the text each node stands.
	{prefix: "go.yaml.in/yaml/v3", folders: []string{"pkg/inject/manifest", "hack/chart", "hack/workloads"}},
	// Header compression of HTTP/2, and nothing else of that module.
	{prefix: "golang.org/x/net/http2/hpack", folders: []string{"pkg/h2"}},
	// The number of a system call, which package syscall does not have.
	{prefix: "golang.org/x/sys", folders: []string{"pkg/socket"}},
	{prefix: "github.com/charmbracelet/x/term", folders: []string{"cmd/kubectl-queue_proxy"}},
	// The logger is made in main and passed on as a value to the edges.
	{prefix: "go.uber.org/zap", folders: []string{"cmd/queue-proxy", "cmd/injector", "pkg/sidecar", "pkg/accesslog", "pkg/inject/webhook"}},
}

// required lists the modules that the sidecar is built on because those who asked for
// it did: production code of its folders imports each.
var required = []string{
	"github.com/kelseyhightower/envconfig",
	"github.com/prometheus/client_golang",
	"go.opencensus.io",
	"go.uber.org/zap",
}

// heavy lists what the sidecar must not link, directly or through others: each
// costs megabytes of binary or of memory in every pod.
var heavy = []string{
	// It compiles two regular expressions before main: a megabyte, and a fifteenth of a
	// start's CPU time. OpenCensus has it from 0.16 on (docs/dependencies.md).
	"go.opencensus.io/trace/tracestate",
	"k8s.io/",
	"sigs.k8s.io/",
	"google.golang.org/grpc",
	"github.com/spf13/",
	"charm.land/",
	"github.com/charmbracelet/",
	// All but the messages of OTLP.
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/contrib/",
	"go.opentelemetry.io/proto/otlp/collector/",
	// What all of that module's packages need but hpack, which pkg/h2 uses.
	"golang.org/x/net/http/",
	"golang.org/x/net/idna",
}

// remembered lists the package variables that are neither errors nor tables
// and are allowed nevertheless, as "pkg/folder.name", with the reason.
var remembered = map[string]string{
	"cmd/queue-proxy.version": "written by the linker, -X main.version",
	"cmd/queue-proxy.commit":  "written by the linker, -X main.commit",
	"pkg/status.page":         "embedded by the compiler",
	"cmd/injector.version":    "written by the linker, -X main.version",
	"cmd/injector.commit":     "written by the linker, -X main.commit",

	"cmd/kubectl-queue_proxy.version": "written by the linker, -X main.version",
	"cmd/kubectl-queue_proxy.commit":  "written by the linker, -X main.commit",
}
