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

	// Text for users.
	{path: "pkg/message"},

	// Limits on the behavior of peers. Each area can import this package.
	{path: "pkg/observation/bound", may: []string{"pkg/message"}},

	// Admission by client address.
	{path: "pkg/fair", may: []string{"pkg/observation/bound"}},
	{path: "pkg/certs"},

	// Connections and protocols. From other areas, these packages import only the admission
	// of handshakes and the names of bounds.
	{path: "pkg/transport"},
	{path: "pkg/transport/netconn", may: []string{"pkg/fair", "pkg/observation/bound"}},
	{path: "pkg/transport/http1/wire", may: []string{"pkg/transport"}},
	{path: "pkg/transport/http2/http2conn", may: []string{"pkg/observation/bound", "pkg/transport/http1/wire", "pkg/transport/netconn"}},
	{path: "pkg/transport/rewrite", may: []string{
		"pkg/observation/bound", "pkg/transport", "pkg/transport/http1/wire", "pkg/transport/netconn",
	}},
	{path: "pkg/transport/http2/http2client", may: []string{
		"pkg/observation/bound", "pkg/transport", "pkg/transport/http1/wire", "pkg/transport/http2/http2conn",
		"pkg/transport/netconn", "pkg/transport/rewrite",
	}},
	{path: "pkg/transport/http1/http1client", may: []string{
		"pkg/observation/bound", "pkg/transport", "pkg/transport/http1/wire", "pkg/transport/netconn",
		"pkg/transport/rewrite",
	}},
	{path: "pkg/transport/http2", may: []string{
		"pkg/observation/bound", "pkg/transport", "pkg/transport/http1/http1client", "pkg/transport/http1/wire",
		"pkg/transport/http2/http2client", "pkg/transport/http2/http2conn", "pkg/transport/netconn",
		"pkg/transport/rewrite",
	}},
	{path: "pkg/transport/http1", may: []string{
		"pkg/observation/bound", "pkg/transport", "pkg/transport/http1/http1client", "pkg/transport/http1/wire",
		"pkg/transport/http2/http2client", "pkg/transport/netconn", "pkg/transport/rewrite",
	}},

	// The record of one request, the failure reasons and the readiness.
	{path: "pkg/observation", may: []string{"pkg/message", "pkg/transport"}},

	// The lifecycle of a request.
	{path: "pkg/proxy/knative", may: []string{"pkg/observation", "pkg/transport"}},
	{path: "pkg/proxy/stats", may: []string{"pkg/transport"}},
	{path: "pkg/proxy/adapt", may: []string{"pkg/observation"}},
	{path: "pkg/proxy", may: []string{
		"pkg/fair", "pkg/observation", "pkg/proxy/adapt", "pkg/proxy/knative", "pkg/proxy/stats",
		"pkg/transport",
	}},
	{path: "pkg/probe", may: []string{"pkg/message", "pkg/observation", "pkg/transport"}},

	// Packages that consume observations.
	{path: "pkg/observe/export", may: []string{"pkg/message", "pkg/transport"}},
	{path: "pkg/observe/metrics", may: []string{
		"pkg/fair", "pkg/message", "pkg/observation", "pkg/observation/bound", "pkg/observe/export",
	}},
	{path: "pkg/observe/tracing", may: []string{"pkg/message", "pkg/observation", "pkg/observe/export", "pkg/transport"}},
	{path: "pkg/observe/accesslog", may: []string{"pkg/message", "pkg/observation", "pkg/observe/export", "pkg/transport"}},
	{path: "pkg/observe/status", may: []string{"pkg/fair", "pkg/message", "pkg/observation", "pkg/observation/bound"}},
	{path: "pkg/config", may: []string{"pkg/message", "pkg/probe", "pkg/proxy/adapt"}},

	// The injector.
	{path: "pkg/inject", may: []string{"pkg/config", "pkg/message", "pkg/probe", "pkg/proxy/knative"}},
	{path: "pkg/inject/manifest", may: []string{"pkg/inject", "pkg/message"}},
	{path: "pkg/inject/webhook", may: []string{"pkg/certs", "pkg/fair", "pkg/inject", "pkg/message"}},

	// The kubectl plugin.
	{path: "pkg/plugin", may: []string{"pkg/config", "pkg/message"}},

	// The process.
	{path: "pkg/sidecar", may: []string{
		"pkg/certs", "pkg/config", "pkg/fair", "pkg/message", "pkg/observation", "pkg/observation/bound",
		"pkg/observe/accesslog", "pkg/observe/export", "pkg/observe/metrics", "pkg/observe/status",
		"pkg/observe/tracing", "pkg/probe", "pkg/proxy", "pkg/proxy/adapt", "pkg/proxy/knative",
		"pkg/proxy/stats", "pkg/transport", "pkg/transport/http1", "pkg/transport/http1/http1client",
		"pkg/transport/http2", "pkg/transport/http2/http2client", "pkg/transport/netconn",
		"pkg/transport/rewrite",
	}},
	{path: "cmd/internal/cli", may: []string{"pkg/message"}},
	{path: "cmd/injector/internal/check", may: []string{"pkg/inject", "pkg/message"}},
	{path: "cmd/queue-proxy", may: []string{"pkg/config", "pkg/message", "pkg/observe/status", "pkg/sidecar", "pkg/transport/netconn"}},
	{path: "cmd/injector", may: []string{
		"cmd/injector/internal/check", "cmd/internal/cli", "pkg/inject", "pkg/inject/manifest",
		"pkg/inject/webhook", "pkg/message",
	}},
	{path: "cmd/kubectl-queue_proxy", may: []string{"cmd/internal/cli", "pkg/message", "pkg/plugin"}},
	{path: "hack/sbom"},
	{path: "hack/release"},
	{path: "hack/chart"},
	{path: "hack/workloads"},
	{path: "hack/plain"},
	{path: "hack/site"},

	// Packages that only tests and plots use.
	{path: "test/limits/simulation", may: []string{"pkg/observation", "pkg/proxy/adapt"}},
	{path: "test/limits/measure", may: []string{"test/limits/simulation"}},
	{path: "test/reference", may: []string{
		"pkg/transport", "pkg/transport/http1/http1client", "pkg/transport/http1/wire",
		"pkg/transport/http2/http2client", "pkg/transport/rewrite",
	}},
	{path: "test/proxytest", may: []string{
		"pkg/observation", "pkg/observation/bound", "pkg/proxy", "pkg/proxy/stats", "pkg/transport", "pkg/transport/http1",
		"pkg/transport/http1/http1client", "pkg/transport/http1/wire", "pkg/transport/http2",
		"pkg/transport/http2/http2client", "pkg/transport/netconn", "pkg/transport/rewrite", "test/harness",
		"test/reference",
	}},
	{path: "test/streams"},
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
	"test/incidents",
	"test/soak",
	"test/ledger",
	"test/rules",
}

// An importer is a module or a group of modules, with the directories that can import it in
// production code. Tests can import any module.
type importer struct {
	prefix  string
	folders []string
}

// importers lists the modules of other projects that production code can import. All other modules
// are forbidden.
var importers = []importer{
	{prefix: "github.com/kelseyhightower/envconfig", folders: []string{"pkg/config"}},
	{prefix: "github.com/prometheus/client_model", folders: []string{"pkg/observe/metrics", "pkg/plugin"}},
	// The check of the injector parses the version in the metrics.
	{prefix: "github.com/prometheus/common", folders: []string{"pkg/observe/metrics", "pkg/plugin", "cmd/injector/internal/check"}},
	{prefix: "github.com/prometheus/", folders: []string{"pkg/observe/metrics", "pkg/inject/webhook"}},
	{prefix: "github.com/rogpeppe/go-internal/diff", folders: []string{"cmd/injector", "pkg/inject/manifest"}},
	{prefix: "github.com/spf13/", folders: []string{"cmd/internal/cli", "cmd/injector", "cmd/kubectl-queue_proxy"}},
	{prefix: "go.opencensus.io", folders: []string{"pkg/observe/tracing"}},
	// Only the messages of OTLP are permitted, because the services of OTLP in collector/ would
	// require gRPC.
	{prefix: "go.opentelemetry.io/proto/otlp/", folders: []string{"pkg/observe/export", "pkg/observe/metrics", "pkg/observe/tracing"}},
	{prefix: "google.golang.org/protobuf/", folders: []string{"pkg/observe/export", "pkg/observe/metrics", "pkg/probe", "pkg/observe/tracing"}},
	{prefix: "charm.land/", folders: []string{"cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/cli-runtime/", folders: []string{"pkg/plugin", "cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/client-go/", folders: []string{"pkg/plugin", "cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/klog/v2", folders: []string{"cmd/kubectl-queue_proxy"}},
	{prefix: "k8s.io/streaming/", folders: []string{"pkg/plugin"}},
	{prefix: "k8s.io/", folders: []string{"pkg/inject", "cmd/injector/internal/check", "pkg/inject/webhook", "pkg/plugin"}},
	{prefix: "sigs.k8s.io/", folders: []string{"pkg/inject", "pkg/inject/webhook"}},
	// Only this library returns the position of each node in the text.
	{prefix: "go.yaml.in/yaml/v3", folders: []string{"pkg/inject/manifest", "hack/chart", "hack/workloads"}},
	// Header compression of HTTP/2. No other package of this module is used.
	{prefix: "golang.org/x/net/http2/hpack", folders: []string{"pkg/transport/http2/http2conn"}},
	// This module contains the number of a system call that package syscall lacks.
	{prefix: "golang.org/x/sys", folders: []string{"pkg/transport/netconn"}},
	{prefix: "github.com/charmbracelet/x/term", folders: []string{"cmd/kubectl-queue_proxy"}},
	// The logger is created in main and passed to the other packages as a value.
	{prefix: "go.uber.org/zap", folders: []string{"cmd/queue-proxy", "cmd/injector", "pkg/sidecar", "pkg/observe/accesslog", "pkg/inject/webhook"}},
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
	// This package compiles two regular expressions before main, which takes 1 MB and 1/15 of
	// the CPU time of a start. OpenCensus 0.16 and later import it (docs/dependencies.md).
	"go.opencensus.io/trace/tracestate",
	"k8s.io/",
	"sigs.k8s.io/",
	"google.golang.org/grpc",
	"github.com/spf13/",
	"charm.land/",
	"github.com/charmbracelet/",
	// The prefix contains all packages of OpenTelemetry except the messages of OTLP.
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/contrib/",
	"go.opentelemetry.io/proto/otlp/collector/",
	// All packages of the module golang.org/x/net need these packages, except hpack, which
	// pkg/transport/http2/http2conn uses.
	"golang.org/x/net/http/",
	"golang.org/x/net/idna",
}

// remembered lists allowed package variables that are neither errors nor tables. The key is
// "pkg/directory.name", and the value is the reason.
var remembered = map[string]string{
	"cmd/queue-proxy.version": "written by the linker, -X main.version",
	"cmd/queue-proxy.commit":  "written by the linker, -X main.commit",
	"pkg/observe/status.page": "embedded by the compiler",
	"cmd/injector.version":    "written by the linker, -X main.version",
	"cmd/injector.commit":     "written by the linker, -X main.commit",

	"cmd/kubectl-queue_proxy.version": "written by the linker, -X main.version",
	"cmd/kubectl-queue_proxy.commit":  "written by the linker, -X main.commit",
}
