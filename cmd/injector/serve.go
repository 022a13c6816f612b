package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/queue-proxy/queue-proxy/cmd/internal/cli"
	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/webhook"
)

// serving contains the flags of serve.
type serving struct {
	addr, metricsAddr                         string
	certDir, clientCA                         string
	selfManaged                               bool
	namespace, service, secret, configuration string
	onRefusal                                 string
	events                                    bool
	linger                                    time.Duration
	host, port                                string // host and port of the API server
}

func (c *command) serveCommand() *cobra.Command {
	s := &serving{host: valueOf(c.environ, "KUBERNETES_SERVICE_HOST"), port: valueOf(c.environ, "KUBERNETES_SERVICE_PORT")}
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve an admission webhook that injects the sidecar into pods",
		Long: `Serve an admission webhook that injects the sidecar into pods when they are created. The
manifests are in the directory deploy.

The certificate is read from a directory. If --self-managed is set, the injector creates, renews and
publishes the certificate. The options are the default values for pods without annotations. Pods
cannot set the options that are specified with --lock.

After SIGTERM, SIGINT or SIGHUP, the injector completes the open reviews and exits. A second signal
stops it immediately.
` + optionsHelp + `
Exit codes:
  0  The injector received a signal.
  2  An error occurred.
`,
		Example: `  # Create the certificate in the cluster.
  injector serve --self-managed --image registry.example/queue-proxy:1

  # Use an existing certificate and an image that pods cannot change.
  injector serve --cert-dir /certs --lock=image,settings --image registry.example/queue-proxy:1`,
		Args: cli.NoArguments(""),
		PreRunE: func(*cobra.Command, []string) error {
			if s.selfManaged && s.namespace == "" {
				return errors.New("--self-managed requires --namespace or the environment variable POD_NAMESPACE")
			}
			return cmp.Or(checkAddress("addr", s.addr), checkAddress("metrics-addr", s.metricsAddr))
		},
		RunE: func(*cobra.Command, []string) error { return c.serve(s) },
	}
	flags := cmd.Flags()
	flags.StringVar(&s.addr, "addr", ":8443", "`address` of the webhook, HTTPS")
	flags.StringVar(&s.metricsAddr, "metrics-addr", ":8080", "`address` of /metrics, /healthz and /readyz, HTTP")
	flags.StringVar(&s.certDir, "cert-dir", "/certs", "`directory` that contains tls.crt and tls.key; changes are applied without a restart")
	flags.StringVar(&s.clientCA, "client-ca", "", "`file` that contains CA certificates in PEM format; clients must present a certificate that is signed by one of the CAs")
	flags.BoolVar(&s.selfManaged, "self-managed", false, "create, renew and publish the certificate")
	flags.StringVar(&s.namespace, "namespace", valueOf(c.environ, "POD_NAMESPACE"), "`namespace` of the injector, the Service and the Secret")
	flags.StringVar(&s.service, "service", "queue-proxy-injector", "`name` of the Service of the webhook (used with --self-managed)")
	flags.StringVar(&s.secret, "secret", "queue-proxy-injector-certificate", "`name` of the Secret for the certificate (used with --self-managed)")
	flags.StringVar(&s.configuration, "configuration", "queue-proxy-injector", "`name` of the MutatingWebhookConfiguration (used with --self-managed)")
	cli.Choice(cmd, &s.onRefusal, "on-refusal", "", "action for a pod that cannot be injected according to the annotations", "deny", "allow")
	flags.BoolVar(&s.events, "events", false, "create events for workloads without a sidecar if the namespace has the label of the injector")
	cli.Duration(flags, &s.linger, "linger", 5*time.Second, 0, "time to accept new reviews after SIGTERM")
	c.optionFlags(cmd)
	return cmd
}

// checkAddress returns an error if the value of the given flag is not the address of a listener.
func checkAddress(flag, address string) error {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return fmt.Errorf("--%s: %q: must be an address with a port, such as :8443", flag, address)
	}
	return nil
}

// serve runs the webhook until it receives SIGTERM, SIGINT or SIGHUP. It then completes the reviews
// in progress. It returns immediately if it receives a second signal.
func (c *command) serve(s *serving) error {
	log := logger(c.stderr)
	server, err := s.server(c.options, log)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a closed standard error must not terminate the process
	ending := []os.Signal{syscall.SIGTERM, os.Interrupt}
	if !signal.Ignored(syscall.SIGHUP) { // do not handle SIGHUP if nohup ignores it
		ending = append(ending, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ending...)
	defer stop()
	context.AfterFunc(ctx, stop) // after stop, a second signal terminates the process
	err = server.Run(ctx, func(reviews, metrics net.Addr) {
		log.Info("listening", zap.String("version", version), zap.Stringer("reviews", reviews), zap.Stringer("metrics", metrics))
	})
	if err != nil {
		return err
	}
	log.Info("exiting")
	return nil
}

// server returns the server that serve runs.
func (s *serving) server(options inject.Options, log *zap.Logger) (*webhook.Server, error) {
	metrics := webhook.NewMetrics(version, commit)
	reviewer := webhook.NewReviewer(options, log, metrics)
	reviewer.Lenient = s.onRefusal == "allow"
	server := &webhook.Server{
		Reviewer: reviewer, Metrics: metrics, Log: log,
		Addr: s.addr, MetricsAddr: s.metricsAddr, Linger: s.linger,
	}
	if s.clientCA != "" {
		text, err := os.ReadFile(s.clientCA)
		if err != nil {
			return nil, fmt.Errorf("--client-ca: %w", err)
		}
		if server.ClientCAs, err = webhook.ParseAuthorities(text); err != nil {
			return nil, fmt.Errorf("--client-ca %s: %w", s.clientCA, err)
		}
	}
	var kube *webhook.Kube
	if s.selfManaged || s.events {
		var err error
		if kube, err = webhook.InCluster(s.host, s.port); err != nil {
			return nil, err
		}
	}
	if s.selfManaged {
		self := &webhook.Self{Kube: kube, Namespace: s.namespace, Service: s.service, Secret: s.secret, Configuration: s.configuration, Log: log, Metrics: metrics.AddAuthority(), Now: time.Now}
		server.Certificate, server.NotAfter = self.GetCertificate, self.NotAfter
		server.Beside = append(server.Beside, self.Run)
	} else {
		files, err := webhook.OpenFiles(s.certDir, log)
		if err != nil {
			return nil, err
		}
		if files.NotAfter().IsZero() {
			log.Warn("no certificate, so API servers cannot connect and /readyz fails; waiting for tls.crt and tls.key", zap.String("directory", s.certDir))
		}
		server.Certificate, server.NotAfter = files.GetCertificate, files.NotAfter
		server.Beside = append(server.Beside, files.Run)
	}
	metrics.AddCertificate(server.NotAfter)
	if s.events {
		events := webhook.NewEvents(kube, s.namespace, log, metrics)
		reviewer.Events = events
		server.Beside = append(server.Beside, events.Run)
	}
	return server, nil
}

// valueOf returns the value of a variable in an environment, or "" if it does not exist.
func valueOf(environ []string, name string) string {
	for _, line := range environ {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			return value
		}
	}
	return ""
}

// logger returns a JSON logger with the same keys as the log of the sidecar.
func logger(w io.Writer) *zap.Logger {
	encoder := zap.NewProductionEncoderConfig()
	encoder.TimeKey, encoder.LevelKey, encoder.MessageKey = "timestamp", "severity", "message"
	encoder.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoder.EncodeLevel = func(l zapcore.Level, e zapcore.PrimitiveArrayEncoder) { e.AppendString(strings.ToUpper(l.String())) }
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(encoder), zapcore.Lock(zapcore.AddSync(w)), zap.InfoLevel))
}
