package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/inject/webhook"
)

// serving is what the flags of serve say.
type serving struct {
	addr, metricsAddr                         string
	certDir, clientCA                         string
	selfManaged                               bool
	namespace, service, secret, configuration string
	onRefusal                                 string
	events                                    bool
	linger                                    time.Duration
	host, port                                string // of the API server
	said                                      inject.Options
}

// serve runs the webhook until it receives SIGTERM, SIGINT or SIGHUP. It then completes the open reviews. It returns
// immediately if it receives a second signal.
func (c *command) serve(args, environ []string) error {
	s, err := c.readServing(args, environ)
	if err != nil {
		return err
	}
	log := logger(c.stderr)
	server, err := s.server(log)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a log that nobody reads any more must not end us
	ending := []os.Signal{syscall.SIGTERM, os.Interrupt}
	if !signal.Ignored(syscall.SIGHUP) { // as it is under nohup
		ending = append(ending, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ending...)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal has its usual effect
	err = server.Run(ctx, func(reviews, metrics net.Addr) {
		log.Info("listening", zap.String("version", version), zap.Stringer("reviews", reviews), zap.Stringer("metrics", metrics))
	})
	if err != nil {
		return err
	}
	log.Info("ended")
	return nil
}

func (c *command) readServing(args, environ []string) (*serving, error) {
	s := &serving{host: valueOf(environ, "KUBERNETES_SERVICE_HOST"), port: valueOf(environ, "KUBERNETES_SERVICE_PORT")}
	var err error
	if s.said, err = inject.FromEnv(environ); err != nil {
		return nil, err
	}
	flags := s.flags(environ)
	optionFlags(flags, s.said)
	switch err := c.parseAll(flags, args, ""); {
	case err != nil:
		return nil, err
	case s.said.IsPlaceholder():
		return nil, inject.ErrPlaceholder
	case s.selfManaged && s.namespace == "":
		return nil, errors.New("-self-managed: -namespace, or POD_NAMESPACE in the environment, is needed")
	}
	return s, nil
}

// flags are those of serve alone.
func (s *serving) flags(environ []string) *flag.FlagSet {
	flags := newFlags("serve")
	flags.StringVar(&s.addr, "addr", ":8443", "`address` of reviews, HTTPS")
	flags.StringVar(&s.metricsAddr, "metrics-addr", ":8080", "`address` of /metrics, /healthz and /readyz, HTTP")
	flags.StringVar(&s.certDir, "cert-dir", "/certs", "`folder` of tls.crt and tls.key, looked at again every few seconds")
	flags.StringVar(&s.clientCA, "client-ca", "", "`file` of authorities, PEM: answer clients with a certificate of one of these alone")
	flags.BoolVar(&s.selfManaged, "self-managed", false, "make, renew and publish the certificate here instead")
	flags.StringVar(&s.namespace, "namespace", valueOf(environ, "POD_NAMESPACE"), "the injector's own `namespace`; with -self-managed that of Service and Secret")
	flags.StringVar(&s.service, "service", "queue-proxy-injector", "with -self-managed: the webhook's Service")
	flags.StringVar(&s.secret, "secret", "queue-proxy-injector-certificate", "with -self-managed: the Secret that keeps the certificate")
	flags.StringVar(&s.configuration, "configuration", "queue-proxy-injector", "with -self-managed: the MutatingWebhookConfiguration")
	flags.StringVar(&s.onRefusal, "on-refusal", "deny", "what happens to a pod that cannot be injected as its annotations ask: deny, or allow without a sidecar")
	flags.BoolVar(&s.events, "events", false, "write events about workloads whose pods are not injected, in namespaces with our label")
	flags.DurationVar(&s.linger, "linger", 5*time.Second, "how long reviews are still answered after SIGTERM")
	return flags
}

// server builds what serve runs.
func (s *serving) server(log *zap.Logger) (*webhook.Server, error) {
	metrics := webhook.NewMetrics(version, commit)
	reviewer := webhook.NewReviewer(s.said, log, metrics)
	reviewer.Lenient = s.onRefusal == "allow"
	server := &webhook.Server{
		Reviewer: reviewer, Metrics: metrics, Log: log,
		Addr: s.addr, MetricsAddr: s.metricsAddr, Linger: s.linger,
	}
	if s.clientCA != "" {
		text, err := os.ReadFile(s.clientCA)
		if err != nil {
			return nil, fmt.Errorf("-client-ca: %w", err)
		}
		if server.ClientCAs, err = webhook.ParseAuthorities(text); err != nil {
			return nil, fmt.Errorf("-client-ca %s: %w", s.clientCA, err)
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

// valueOf is a variable of an environment, "" if it is not there.
func valueOf(environ []string, name string) string {
	for _, line := range environ {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			return value
		}
	}
	return ""
}

// logger writes lines of JSON with the keys of the sidecar's.
func logger(w io.Writer) *zap.Logger {
	encoder := zap.NewProductionEncoderConfig()
	encoder.TimeKey, encoder.LevelKey, encoder.MessageKey = "timestamp", "severity", "message"
	encoder.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoder.EncodeLevel = func(l zapcore.Level, e zapcore.PrimitiveArrayEncoder) { e.AppendString(strings.ToUpper(l.String())) }
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(encoder), zapcore.Lock(zapcore.AddSync(w)), zap.InfoLevel))
}
