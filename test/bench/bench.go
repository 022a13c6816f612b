//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// concurrency is the concurrency limit of the peers that support such a limit. The peers check
	// the limit for each request, but the loads do not reach it.
	concurrency = 1000

	// openRate, in requests per second, and openConnections define the load of the latency
	// measurement.
	openRate        = 1000
	openConnections = 16

	// The settings of the queue measurement: the concurrency limit, the number of clients, and
	// the duration of a request in the app.
	queueConcurrency = 10
	queueClients     = 100
	queueService     = 20 * time.Millisecond
)

// A bench is a run of the program.
type bench struct {
	bin             string
	dir             string // directory for temporary files
	results         *Results
	peers, variants []*peer
	certs           [3]string
	secure          *tls.Config // configuration of clients that trust the certificate
	quota           *quota
	noQuota         error // reason why the bench cannot create a cgroup with a CPU quota; nil if it can
	shared          error // reason why the bench has no separate network namespace; nil if it has one
}

// newBench prepares a run. shared is the reason why the bench uses the network of the machine,
// or nil if it has its own network namespace. If before is not empty, only the two builds are
// compared (see compareBuilds).
func newBench(bin, before string, r *Results, shared error) (*bench, error) {
	b := &bench{bin: bin, results: r, shared: shared}
	var err error
	if before != "" {
		b.peers, err = findBuilds(bin, before)
	} else {
		b.peers, b.variants, err = findPeers(bin)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"wrk", "h2load"} {
		if _, err := commandPath(name); err != nil {
			return nil, err
		}
	}
	if b.dir, err = os.MkdirTemp("", "queue-proxy-bench"); err != nil {
		return nil, err
	}
	if b.certs[0], b.certs[1], b.certs[2], err = writeCertificate(b.dir); err == nil {
		b.secure, err = tlsConfigFor(b.certs[0])
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.dir))
	}
	b.quota, b.noQuota = newQuota()
	if b.shared != nil {
		b.peers = slices.DeleteFunc(b.peers, func(p *peer) bool { return p.certDir != "" })
		b.results.note("size", knative, "not measured, ports in use: "+b.shared.Error())
	}
	return b, nil
}

// tlsConfigFor returns the configuration of a client that trusts the certificate in a file.
func tlsConfigFor(cert string) (*tls.Config, error) {
	text, err := os.ReadFile(cert)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate found", cert)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, nil
}

func (b *bench) close() {
	if b.quota != nil {
		if err := b.quota.remove(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	os.RemoveAll(b.dir)
}

// measure runs all rounds. It returns an error only if ctx is done or if the bench itself fails.
// Errors of peers are stored in the results.
func (b *bench) measure(ctx context.Context) error {
	for _, p := range b.peers {
		if !b.results.Settings.selects("start") {
			break
		}
		info, err := os.Stat(p.program)
		if err != nil {
			return err
		}
		b.results.add("size", p.name, float64(info.Size())/1e6)
	}
	for n := range b.results.Settings.Rounds {
		if err := b.round(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// round runs the selected measurements once.
func (b *bench) round(ctx context.Context, n int) error {
	began := time.Now()
	app, err := b.startApp(0)
	if err != nil {
		return err
	}
	defer app.stop()
	for _, step := range []struct {
		name   string
		groups []string // groups of rows; the step runs if one of them is selected
		run    func(ctx context.Context, app *runningApp, n int) error
	}{
		{"starts", []string{"start"}, b.starts},
		{"memory", []string{"memory"}, b.memory},
		{"density", []string{"density"}, b.density},
		{"idle pods", []string{"idle"}, b.idle},
		{"loads", []string{"plain", "tls", "h2", "telemetry", "latency", "paired"}, b.loads},
		{"gRPC", []string{"grpc"}, b.calls},
		{"queue", []string{"queue"}, b.queue},
	} {
		if !slices.ContainsFunc(step.groups, b.results.Settings.selects) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s (%.0f s)\n", n+1, b.results.Settings.Rounds, step.name, time.Since(began).Seconds())
		if err := step.run(ctx, app, n); err != nil {
			return err
		}
	}
	return nil
}

// A runningApp is the app behind the peers.
type runningApp struct {
	*process
	http, grpc string // addresses of the app for HTTP/1.1 and for gRPC
}

// startApp starts the app and waits until it responds. separate is a set of new namespaces:
// CLONE_NEWNET or 0.
func (b *bench) startApp(separate uintptr) (*runningApp, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	app := &runningApp{http: net.JoinHostPort("127.0.0.1", ports[0]), grpc: net.JoinHostPort("127.0.0.1", ports[1])}
	g := program{
		name:     "app",
		argv:     []string{mustAbs(filepath.Join(b.bin, "app")), "-listen", app.http, "-grpc", app.grpc},
		separate: separate,
	}
	if separate != 0 {
		g.before = func(pid int) error { return insideNetwork(pid, loopbackUp) }
	}
	if app.process, err = launch(g); err != nil {
		return nil, err
	}
	ask := func() error {
		_, err := app.answers(app.http, get)
		return err
	}
	if separate != 0 {
		err = insideNetwork(app.pid(), ask)
	} else {
		err = ask()
	}
	if err != nil {
		app.stop()
		return nil, err
	}
	return app, nil
}

// running is a peer that has been started.
type running struct {
	*peer
	*process
	at    *parameters
	took  time.Duration // time from exec to the first response
	lines *lineCounter  // nil if the peer writes no request log
	spans *spanSink     // nil if the peer sends no spans
}

func (r *running) name() string { return r.peer.name }

// stop stops the peer and its span sink.
func (r *running) stop() {
	r.process.stop()
	if r.spans != nil {
		r.spans.close()
	}
}

// telemetryCounter returns a function that counts the lines or spans of the peer.
func (r *running) telemetryCounter() func() int {
	if r.lines != nil {
		return r.lines.count
	}
	return r.spans.count
}

// Circumstances are the conditions under which a peer runs.
type circumstances struct {
	app   *runningApp
	grpc  bool // the peer forwards to the app that supports gRPC
	pod   bool // the peer shares the network namespace of the app
	limit int  // concurrency limit for the app
	quota *quota
}

// start starts a peer and waits until it responds.
func (b *bench) start(p *peer, in circumstances) (_ *running, err error) {
	at, err := b.newParameters(in)
	if err != nil {
		return nil, err
	}
	r, g := &running{peer: p, at: at}, program{name: p.name}
	switch p.tells {
	case "line":
		r.lines = &lineCounter{}
		g.out = r.lines
	case "span":
		if r.spans, err = newSpanSink(); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				r.spans.close()
			}
		}()
		at.Sink = r.spans.address
	}
	if g.argv, g.env, err = p.command(p.program, at); err != nil {
		return nil, err
	}
	if in.pod {
		g.argv = append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", in.app.pid())}, g.argv...)
	}
	var before []func(int) error
	if p.certDir != "" {
		g.separate = unix.CLONE_NEWNS
		before = append(before, provide(p.certDir, at.Cert, at.Key))
	}
	if in.quota != nil {
		before = append(before, in.quota.add) // add must be last, because it waits until earlier use of CPU time no longer reduces the quota
	}
	g.before = func(pid int) error {
		for _, f := range before {
			if err := f(pid); err != nil {
				return err
			}
		}
		return nil
	}
	if r.process, err = launch(g); err != nil {
		return nil, err
	}
	ask := func() (err error) {
		r.took, err = r.answers(at.Address, p.ask())
		return err
	}
	if !in.pod {
		err = ask()
	} else {
		err = insideNetwork(in.app.pid(), ask)
	}
	if err != nil {
		r.process.stop()
	}
	return r, err
}

// newParameters selects ports and creates a directory for a peer.
func (b *bench) newParameters(in circumstances) (*parameters, error) {
	ports, err := freePorts(6)
	if err != nil {
		return nil, err
	}
	local := func(i int) string { return net.JoinHostPort("127.0.0.1", ports[i]) }
	at := &parameters{
		App: in.app.http, GRPC: in.grpc, Address: local(0), H2C: local(0), TLS: local(1),
		Cert: b.certs[0], Key: b.certs[1], Pair: b.certs[2],
		Concurrency: in.limit,
		admin:       ports[2], autoscaler: ports[3], metrics: ports[4], status: ports[5],
	}
	if in.grpc {
		at.App = in.app.grpc
	}
	if in.pod {
		at.autoscaler, at.metrics = statisticsPort, metricsPort
	}
	at.Dir, err = os.MkdirTemp(b.dir, "peer")
	return at, err
}

// starts measures the time from exec to the first response. It measures this time without a CPU
// quota, and again with the CPU quota of a small pod.
func (b *bench) starts(ctx context.Context, app *runningApp, n int) error {
	kinds := []struct {
		id    string
		quota *quota
	}{{"start/plain", nil}, {"start/quota", b.quota}}
	for _, kind := range kinds {
		if kind.id == "start/quota" && b.quota == nil {
			b.results.note(kind.id, ours, "not measured: "+b.noQuota.Error())
			continue
		}
		if err := b.startsOf(ctx, app, rotate(b.peers, n), kind.id, kind.quota); err != nil {
			return err
		}
	}
	return nil
}

// startsOf adds the median start time of each peer to the row id. If q is nil, there is no CPU
// quota.
func (b *bench) startsOf(ctx context.Context, app *runningApp, peers []*peer, id string, q *quota) error {
	took := map[string][]float64{}
	for i := range b.results.Settings.Starts {
		for _, p := range rotate(peers, i) {
			r, err := b.start(p, circumstances{app: app, limit: concurrency, quota: q})
			if err := b.failed(ctx, id, p.name, err); err != nil {
				return err
			}
			if err == nil {
				took[p.name] = append(took[p.name], milliseconds(r.took))
				r.stop()
			}
		}
	}
	for name, values := range took {
		b.results.add(id, name, median(values))
	}
	return nil
}

// settle is the time that a new process gets for background work after its first response.
const settle = 500 * time.Millisecond

// many is the maximum number of concurrent connections in the memory measurement.
const many = 1000

// A busyRow is a memory measurement in which each connection has a request in progress.
type busyRow struct {
	most        string // row with the maximum memory; empty if there is no such row
	connections int
	each        string // row with the memory per connection; empty if there is no such row
}

// memory measures the memory of new processes without requests and, for each protocol, the maximum
// memory with a request in progress on each connection.
func (b *bench) memory(ctx context.Context, app *runningApp, n int) error {
	for _, kind := range []struct {
		client client
		rows   []busyRow
	}{
		{client{}, []busyRow{{"memory/64", 64, ""}, {"memory/1000", many, "memory/each"}}},
		{client{tls: b.secure}, []busyRow{{"", many, "memory/tls-each"}}},
		{client{h2: true}, []busyRow{{"", many, "memory/h2c-each"}}},
		{client{tls: b.secure, h2: true}, []busyRow{{"", many, "memory/h2tls-each"}}},
	} {
		last := kind.rows[len(kind.rows)-1].each
		for _, p := range rotate(b.peers, n) {
			if kind.client.h2 && !p.h2ToH1 {
				b.results.note(last, p.name, notServed)
				continue
			}
			if err := b.failed(ctx, last, p.name, b.memoryOf(p, app, kind.client, kind.rows)); err != nil {
				return err
			}
		}
	}
	for _, p := range rotate(b.peers, n) {
		if !p.queues || !p.h2ToH1 {
			continue
		}
		if err := b.failed(ctx, "memory/waiting", p.name, b.memoryOfWaiting(p, app)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) memoryOf(p *peer, app *runningApp, k client, rows []busyRow) error {
	r, err := b.start(p, circumstances{app: app, limit: concurrency})
	if err != nil {
		return err
	}
	defer r.stop()
	time.Sleep(settle)
	idle, err := r.memory("VmRSS")
	if err != nil {
		return err
	}
	if k == (client{}) {
		b.results.add("memory/idle", p.name, idle/1e6)
	}
	for _, c := range rows {
		seconds := time.Duration(b.results.Settings.Seconds) * time.Second
		if _, err := k.closedLoop(k.address(r.at), "/", c.connections, seconds); err != nil {
			return err
		}
		most, err := r.memory("VmHWM")
		if err != nil {
			return err
		}
		if c.most != "" {
			b.results.add(c.most, p.name, most/1e6)
		}
		if c.each != "" {
			b.results.add(c.each, p.name, (most-idle)/1e3/float64(c.connections))
		}
	}
	return nil
}

// density measures the memory of the sidecars on a node with many pods. Each pod has its own
// network namespace, app and sidecar. Each sidecar has served some requests.
func (b *bench) density(ctx context.Context, _ *runningApp, n int) error {
	if b.shared != nil {
		b.results.note("density/share", ours, "not measured: "+b.shared.Error())
		return nil //nolint:nilerr // the note in the results explains why there is no measurement
	}
	for _, p := range rotate(b.peers, n) {
		if err := b.failed(ctx, "density/share", p.name, b.densityOf(ctx, p)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) densityOf(ctx context.Context, p *peer) error {
	var pods []*running
	for range b.results.Settings.Pods {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r, stop, err := b.startPod(p)
		if err != nil {
			return err
		}
		defer stop()
		pods = append(pods, r)
	}
	time.Sleep(settle)
	var shares, privates []float64
	for _, r := range pods {
		private, share, err := r.memoryShare()
		if err != nil {
			return err
		}
		privates, shares = append(privates, private), append(shares, share)
	}
	b.results.add("density/share", p.name, median(shares)/1e6)
	b.results.add("density/private", p.name, median(privates)/1e6)
	return nil
}

// startPod starts an app and a sidecar in a separate network namespace and sends four requests.
// stop terminates both.
func (b *bench) startPod(p *peer) (r *running, stop func(), err error) {
	app, err := b.startApp(unix.CLONE_NEWNET)
	if err != nil {
		return nil, nil, err
	}
	if r, err = b.start(p, circumstances{app: app, limit: concurrency, pod: true}); err != nil {
		app.stop()
		return nil, nil, err
	}
	stop = func() {
		r.stop()
		app.stop()
	}
	err = insideNetwork(app.pid(), func() error {
		_, err := closedLoop(r.at.Address, "/", 4, 0)
		return err
	})
	if err != nil {
		stop()
		return nil, nil, err
	}
	return r, stop, nil
}

// startPeers starts peers and sends requests so that their connection pools are filled. Running
// peers use no CPU time while they receive no requests. startPeers records errors for the given
// measure, and omits peers that fail to start. stop stops all peers.
func (b *bench) startPeers(ctx context.Context, peers []*peer, in circumstances, k client, measure string) (all []*running, stop func(), err error) {
	stop = func() {
		for _, r := range all {
			r.stop()
		}
	}
	for _, p := range peers {
		r, err := b.start(p, in)
		if err == nil {
			all = append(all, r)
			_, err = k.closedLoop(k.address(r.at), "/", 64, settle)
		}
		if err := b.failed(ctx, measure, p.name, err); err != nil {
			stop()
			return nil, nil, err
		}
	}
	return all, stop, nil
}

// loads runs the loads with the HTTP/1.1 app. Each load runs on all peers in turn. The latency
// measurement and the paired measurements follow, with the same processes.
func (b *bench) loads(ctx context.Context, app *runningApp, n int) error {
	telemetry := b.results.Settings.selects("telemetry")
	in := circumstances{app: app, limit: concurrency}
	peers, stop, err := b.startPeers(ctx, b.peers, in, client{}, "cpu/"+loads[0].id)
	if err != nil {
		return err
	}
	defer stop()
	var variants []*running
	if telemetry {
		if variants, stop, err = b.startPeers(ctx, b.variants, in, client{}, "cpu/"+telemetryLoad); err != nil {
			return err
		}
		defer stop()
	}
	direct := &parameters{Dir: b.dir, Address: app.http}
	for i := range loads {
		l := &loads[i]
		if l.grpc || !b.results.Settings.selects(l.group) && (l.id != telemetryLoad || !telemetry) {
			continue
		}
		if err := b.loadAll(ctx, l, rotate(peers, n), direct); err != nil {
			return err
		}
		if l.id == telemetryLoad && telemetry {
			for _, r := range rotate(variants, n) {
				if err := b.failed(ctx, "cpu/"+l.id, r.name(), b.telemetry(ctx, l, r)); err != nil {
					return err
				}
			}
		}
	}
	if b.results.Settings.selects("latency") {
		if err := b.latencies(ctx, app.http, rotate(peers, n)); err != nil {
			return err
		}
	}
	if b.results.Settings.selects("paired") {
		return b.paired(ctx, peers, n)
	}
	return nil
}

// calls runs the loads with the gRPC app.
func (b *bench) calls(ctx context.Context, app *runningApp, n int) error {
	in := circumstances{app: app, grpc: true, limit: concurrency}
	peers, stop, err := b.startPeers(ctx, b.peers, in, client{h2: true}, "cpu/grpc-1x1")
	if err != nil {
		return err
	}
	defer stop()
	direct := &parameters{Dir: b.dir, H2C: app.grpc}
	for i := range loads {
		if l := &loads[i]; l.grpc {
			if err := b.loadAll(ctx, l, rotate(peers, n), direct); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadAll runs one load on the peers and, if the app supports the protocol, on the app.
func (b *bench) loadAll(ctx context.Context, l *load, peers []*running, direct *parameters) error {
	for _, r := range peers {
		if !r.serves(l) {
			b.results.note("cpu/"+l.id, r.name(), notServed)
			continue
		}
		_, err := b.load(ctx, l, r)
		if err := b.failed(ctx, "cpu/"+l.id, r.name(), err); err != nil {
			return err
		}
	}
	if l.tls || l.streams > 0 && !l.grpc {
		return nil
	}
	o, err := l.run(ctx, direct, b.results.Settings.Seconds)
	if err == nil {
		b.results.add("rate/"+l.id, appAlone, o.perSec)
		if l.latency {
			b.results.add("latency/"+l.id, appAlone, microseconds(o.p50))
		}
	}
	return b.failed(ctx, "rate/"+l.id, appAlone, err)
}

// paired compares queue-proxy with HAProxy for loads with similar results. It measures one of them
// immediately after the other, and records the ratio of each pair of measurements. A slow change in
// the speed of the machine affects both measurements of a pair.
func (b *bench) paired(ctx context.Context, peers []*running, n int) error {
	find := func(name string) *running {
		i := slices.IndexFunc(peers, func(r *running) bool { return r.name() == name })
		if i < 0 {
			return nil
		}
		return peers[i]
	}
	mine, theirs := find(ours), find(haproxy)
	if mine == nil || theirs == nil { // startPeers has already recorded the error
		return nil
	}
	for i := range pairsOfRound(b.results.Settings, n) {
		for _, id := range pairedLoads {
			costs := map[*running]float64{}
			for _, r := range rotate([]*running{mine, theirs}, n+i) {
				cost, _, err := b.cost(ctx, findLoad(id), r)
				if err := b.failed(ctx, "paired/"+id, r.name(), err); err != nil {
					return err
				}
				if err == nil {
					costs[r] = cost
				}
			}
			if len(costs) == 2 {
				b.results.add("paired/"+id, ours, costs[mine]/costs[theirs])
			}
		}
	}
	return nil
}

// pairsOfRound returns the number of pairs in round n.
func pairsOfRound(s Settings, n int) int { return (n+1)*s.Pairs/s.Rounds - n*s.Pairs/s.Rounds }

// load runs one load on one peer. It returns the number of responses.
func (b *bench) load(ctx context.Context, l *load, r *running) (int, error) {
	cost, o, err := b.cost(ctx, l, r)
	if err != nil {
		return 0, err
	}
	b.results.add("cpu/"+l.id, r.name(), cost)
	b.results.add("rate/"+l.id, r.name(), o.perSec)
	if l.latency {
		b.results.add("latency/"+l.id, r.name(), microseconds(o.p50))
	}
	return o.requests, nil
}

// cost returns the CPU time per request of a load in microseconds.
func (b *bench) cost(ctx context.Context, l *load, r *running) (float64, outcome, error) {
	before, err := r.cpu()
	if err != nil {
		return 0, outcome{}, err
	}
	o, err := l.run(ctx, r.at, b.results.Settings.Seconds)
	if err != nil {
		return 0, outcome{}, err
	}
	after, err := r.cpu()
	return microseconds(after-before) / float64(o.requests), o, err
}

// telemetry measures a load with a variant of queue-proxy, and checks that the telemetry of the
// variant arrives.
func (b *bench) telemetry(ctx context.Context, l *load, r *running) error {
	count := r.telemetryCounter()
	had := count()
	requests, err := b.load(ctx, l, r)
	if err != nil {
		return err
	}
	note, err := arrived(r.tells, func() int { return count() - had }, r.share*float64(requests))
	if note != "" {
		b.results.note("cpu/"+l.id, r.name(), note)
	}
	if r.spans != nil {
		err = errors.Join(err, r.spans.exportError())
	}
	return err
}

// A turn contains the results of one measurement, which takes one or more seconds.
type turn struct {
	took   []time.Duration
	stolen int // CPU time that the hypervisor did not give to the machine, in ticks
}

// takeTurn runs a measurement and records the stolen CPU time.
func takeTurn(measure func() ([]time.Duration, error)) (t turn, err error) {
	before, err := stolen()
	if err != nil {
		return t, err
	}
	if t.took, err = measure(); err != nil {
		return t, err
	}
	after, err := stolen()
	t.stolen = after - before
	return t, err
}

// leastDisturbed returns the half of the turns with the least stolen CPU time. The other turns are
// ignored, because their 99th percentiles depend on pauses of the machine.
func leastDisturbed(all []turn) []turn {
	sorted := slices.SortedStableFunc(slices.Values(all), func(a, b turn) int { return a.stolen - b.stolen })
	return sorted[:(len(sorted)+1)/2]
}

// latencies measures the latency that each peer adds to the latency of the app at a constant
// rate, and the CPU time at this rate. The peers take turns of one second.
func (b *bench) latencies(ctx context.Context, app string, peers []*running) error {
	var direct []turn
	of := make(map[*running][]turn)
	cpu := make(map[*running]time.Duration)
	for n := range 4 * b.results.Settings.Seconds {
		t, err := takeTurn(latency(app))
		if err != nil {
			return fmt.Errorf("measure the app: %w", err)
		}
		direct = append(direct, t)
		for _, r := range rotate(peers, n) {
			t, used, err := r.latency()
			if err := b.failed(ctx, "added/p99", r.name(), err); err != nil {
				return err
			}
			if err != nil { // omit a peer that failed in this round
				peers = slices.DeleteFunc(slices.Clone(peers), func(p *running) bool { return p == r })
				delete(of, r)
				continue
			}
			of[r], cpu[r] = append(of[r], t), cpu[r]+used
		}
	}
	direct = leastDisturbed(direct)
	for _, p := range percentiles {
		b.results.add("latency/"+p.id, appAlone, p.of(direct))
	}
	for r, all := range of {
		requests := 0
		for _, t := range all {
			requests += len(t.took)
		}
		b.results.add("cpu/open", r.name(), microseconds(cpu[r])/float64(requests))
		for _, p := range percentiles {
			took := p.of(leastDisturbed(all))
			b.results.add("latency/"+p.id, r.name(), took)
			b.results.add("added/"+p.id, r.name(), took-p.of(direct))
		}
	}
	return nil
}

// latency returns a measurement that sends requests to an address for one second.
func latency(address string) func() ([]time.Duration, error) {
	return func() ([]time.Duration, error) {
		return openLoop(address, "/", openRate, openConnections, time.Second)
	}
}

// latency measures the latency of requests to the peer for one second. used is the CPU time of the peer.
func (r *running) latency() (t turn, used time.Duration, err error) {
	before, err := r.cpu()
	if err != nil {
		return t, 0, err
	}
	if t, err = takeTurn(latency(r.at.Address)); err != nil {
		return t, 0, err
	}
	after, err := r.cpu()
	return t, after - before, err
}

// percentiles lists the percentiles in the report.
var percentiles = []rank{{"p50", 50}, {"p99", 99}}

type rank struct {
	id string
	p  float64
}

// of returns the median of the turns' percentiles in microseconds.
func (r rank) of(all []turn) float64 {
	var each []float64
	for _, t := range all {
		each = append(each, microseconds(percentile(t.took, r.p)))
	}
	return median(each)
}

// queue measures the fairness of the queue with ten times the concurrency that the app accepts.
func (b *bench) queue(ctx context.Context, app *runningApp, n int) error {
	for _, p := range rotate(b.peers, n) {
		if !p.queues {
			continue
		}
		if err := b.failed(ctx, "queue/spread", p.name, b.queueOf(p, app)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) queueOf(p *peer, app *runningApp) error {
	r, err := b.start(p, circumstances{app: app, limit: queueConcurrency})
	if err != nil {
		return err
	}
	defer r.stop()
	var all []turn
	for range 4 {
		t, err := takeTurn(func() ([]time.Duration, error) {
			d := time.Duration(max(2, b.results.Settings.Seconds)) * time.Second // shorter runs would only measure the start and the end of the queue
			took, err := closedLoop(r.at.Address, fmt.Sprintf("/slow?ms=%d", queueService.Milliseconds()), queueClients, d)
			if err != nil {
				return nil, err
			}
			return steadyWaits(took)
		})
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	var waits []time.Duration
	for _, t := range leastDisturbed(all) {
		waits = append(waits, t.took...)
	}
	p50, p99 := percentile(waits, 50), percentile(waits, 99)
	b.results.add("queue/p50", p.name, milliseconds(p50))
	b.results.add("queue/p99", p.name, milliseconds(p99))
	b.results.add("queue/spread", p.name, float64(p99)/float64(p50))
	return nil
}

// steadyWaits returns the time in the queue of each request that arrived while the length of the
// queue was constant. It ignores the first three requests of each client, because the queue grows,
// and the last request, because the queue shrinks.
func steadyWaits(took [][]time.Duration) ([]time.Duration, error) {
	const first, last = 3, 1
	var waits []time.Duration
	for _, of := range took {
		for i := first; i < len(of)-last; i++ {
			waits = append(waits, of[i]-queueService)
		}
	}
	if len(waits) < len(took) {
		return nil, fmt.Errorf("got %d waits from %d clients, want at least one wait from each client", len(waits), len(took))
	}
	return waits, nil
}

// failureLength is the maximum length of an error in the report. The terminal shows the
// complete error.
const failureLength = 300

// failed records an error of a peer, so that the run continues with other peers. It returns an error
// only if ctx is done.
func (b *bench) failed(ctx context.Context, measure, peer string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s, %s: %v\n", measure, peer, err)
		line, _, _ := strings.Cut(err.Error(), "\n")
		b.results.fail(measure, peer, strings.ToValidUTF8(line[:min(len(line), failureLength)], ""))
	}
	return nil
}

func mustAbs(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
