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
	// These packages import no other package of the module.
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

	// The engines do not import each other. pkg/http1 passes HTTP/2 connections to pkg/http2
	// through a function.
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
	{path: "pkg/inject/check", may: []string{"pkg/inject"}},
	{path: "pkg/inject/webhook", may: []string{"pkg/inject", "pkg/certs", "pkg/portlimit", "pkg/printable", "pkg/sink"}},
	{path: "pkg/sidecar", may: []string{
		"pkg/adapt", "pkg/memory", "pkg/bound", "pkg/header", "pkg/stats", "pkg/certs", "pkg/wire", "pkg/hangup", "pkg/goaway", "pkg/link", "pkg/loopback", "pkg/socket", "pkg/connlimit", "pkg/fair", "pkg/portlimit", "pkg/probe", "pkg/queue", "pkg/forward", "pkg/upstream",
		"pkg/h2client", "pkg/http1", "pkg/http2", "pkg/export", "pkg/metrics", "pkg/tracing", "pkg/accesslog", "pkg/status", "pkg/config", "pkg/sink",
	}},

	// The client that shows the sidecars of a cluster.
	{path: "pkg/top", may: []string{"pkg/config", "pkg/printable"}},
	{path: "pkg/cluster", may: []string{"pkg/top"}},

	{path: "cmd/queue-proxy", may: []string{"pkg/config", "pkg/sidecar", "pkg/spelling", "pkg/status"}},
	{path: "cmd/injector", may: []string{"pkg/cli", "pkg/printable", "pkg/inject", "pkg/inject/check", "pkg/inject/manifest", "pkg/inject/webhook"}},
	{path: "cmd/kubectl-queue_proxy", may: []string{"pkg/cli", "pkg/cluster", "pkg/printable", "pkg/top"}},
	{path: "hack/sbom"},
	{path: "hack/release"},
	{path: "hack/chart"},
	{path: "hack/workloads"},
	{path: "hack/plain"},

	// These packages are only used by tests and diagrams.
	{path: "test/limits/simulation", may: []string{"pkg/adapt"}},
	{path: "test/limits/measure", may: []string{"test/limits/simulation"}},

	// These packages are only used by tests. All of them can use test/harness, which imports no
	// other package of the module.
	{path: "test/reference", may: []string{"pkg/queue", "pkg/forward", "pkg/upstream", "pkg/h2client", "pkg/header", "pkg/wire"}},
	{path: "test/proxytest", may: []string{
		"pkg/bound", "pkg/memory", "pkg/queue", "pkg/stats", "pkg/forward", "pkg/upstream", "pkg/h2client", "pkg/wire", "pkg/hangup", "pkg/http1", "pkg/http2", "test/harness", "test/reference",
	}},
	{path: "test/streams"}, // contains only tests
}

// outside lists the directories with tests that use the programs only through sockets and
// files. Their files, including tests, import no packages of the module except those in test.
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

// An importer is another module, or a group of modules, and the directories whose production
// code can import it. Tests can import each module.
type importer struct {
	prefix  string
	folders []string
}

// importers lists the other modules that production code can import. All other modules are
// forbidden.
var importers = []importer{
	{prefix: "github.com/kelseyhightower/envconfig", folders: []string{"pkg/config"}},
	{prefix: "github.com/prometheus/client_model", folders: []string{"pkg/metrics", "pkg/top"}},
	{prefix: "github.com/prometheus/common", folders: []string{"pkg/metrics", "pkg/top"}},
	{prefix: "github.com/prometheus/", folders: []string{"pkg/metrics", "pkg/inject/webhook"}},
	{prefix: "github.com/rogpeppe/go-internal/diff", folders: []string{"cmd/injector"}},
	{prefix: "github.com/spf13/", folders: []string{"pkg/cli", "cmd/injector", "cmd/kubectl-queue_proxy"}},
	{prefix: "go.opencensus.io", folders: []string{"pkg/tracing"}},
	// The messages of OTLP. The services of OTLP in collector/ would require gRPC.
	{prefix: "go.opentelemetry.io/proto/otlp/", folders: []string{"pkg/export", "pkg/metrics", "pkg/tracing"}},
	{prefix: "google.golang.org/protobuf/", folders: []string{"pkg/export", "pkg/metrics", "pkg/probe", "pkg/tracing"}},
	{prefix: "charm.land/", folders: []string{"cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/cli-runtime/", folders: []string{"pkg/cluster", "cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/client-go/", folders: []string{"pkg/cluster", "cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/streaming/", folders: []string{"pkg/cluster"}},
	{prefix: "k8s.io/", folders: []string{"pkg/inject", "pkg/inject/check", "pkg/inject/webhook", "pkg/cluster", "pkg/top"}},
	{prefix: "sigs.k8s.io/", folders: []string{"pkg/inject", "pkg/inject/webhook"}},
	// Only this library returns the position of each node in the text.
	{prefix: "go.yaml.in/yaml/v3", folders: []string{"pkg/inject/manifest", "hack/chart", "hack/workloads"}},
	// Header compression of HTTP/2. No other package of this module is used.
	{prefix: "golang.org/x/net/http2/hpack", folders: []string{"pkg/h2"}},
	// The number of a system call that package syscall does not contain.
	{prefix: "golang.org/x/sys", folders: []string{"pkg/socket"}},
	{prefix: "github.com/charmbracelet/x/term", folders: []string{"cmd/kubectl-queue_proxy"}},
	// The logger is created in main and passed to the other packages as a value.
	{prefix: "go.uber.org/zap", folders: []string{"cmd/queue-proxy", "cmd/injector", "pkg/sidecar", "pkg/accesslog", "pkg/inject/webhook"}},
}

// required lists modules that the sidecar must link. These dependencies are a requirement of
// the project.
var required = []string{
	"github.com/kelseyhightower/envconfig",
	"github.com/prometheus/client_golang",
	"go.opencensus.io",
	"go.uber.org/zap",
}

// heavy lists packages that the sidecar must not link directly or indirectly, because each one
// increases the size or the memory of the sidecar by megabytes.
var heavy = []string{
	// It compiles two regular expressions before main, which takes 1 MB and 1/15 of the CPU
	// time of a start. OpenCensus 0.16 and later import it (docs/dependencies.md).
	"go.opencensus.io/trace/tracestate",
	"k8s.io/",
	"sigs.k8s.io/",
	"google.golang.org/grpc",
	"github.com/spf13/",
	"charm.land/",
	"github.com/charmbracelet/",
	// All packages except the messages of OTLP.
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/contrib/",
	"go.opentelemetry.io/proto/otlp/collector/",
	// All packages of this module except hpack, which pkg/h2 uses, need these packages.
	"golang.org/x/net/http/",
	"golang.org/x/net/idna",
}

// remembered lists package variables that are allowed although they are neither errors nor
// tables. The key is "pkg/directory.name", and the value is the reason.
var remembered = map[string]string{
	"cmd/queue-proxy.version": "written by the linker, -X main.version",
	"cmd/queue-proxy.commit":  "written by the linker, -X main.commit",
	"pkg/status.page":         "embedded by the compiler",
	"cmd/injector.version":    "written by the linker, -X main.version",
	"cmd/injector.commit":     "written by the linker, -X main.commit",

	"cmd/kubectl-queue_proxy.version": "written by the linker, -X main.version",
	"cmd/kubectl-queue_proxy.commit":  "written by the linker, -X main.commit",
}
