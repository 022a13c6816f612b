//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// concurrency is the limit of those that have one: it is looked at for each
	// request and reached by none.
	concurrency = 1000

	// openRate and openConnections are the load of the latencies.
	openRate        = 1000
	openConnections = 16

	// The queue: what the app takes at once, how long it takes for each, and how
	// many clients want it.
	queueConcurrency = 10
	queueClients     = 100
	queueService     = 20 * time.Millisecond
)

// A bench is one run.
type bench struct {
	bin             string
	dir             string // for everybody's files, removed at the end
	results         *Results
	peers, variants []*peer
	certs           [3]string
	quota           *quota
	noQuota         error // why there is none
}

func newBench(bin string, r *Results) (*bench, error) {
	b := &bench{bin: bin, results: r}
	var err error
	if b.peers, b.variants, err = findPeers(bin); err != nil {
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
	if b.certs[0], b.certs[1], b.certs[2], err = writeCertificate(b.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.dir))
	}
	b.quota, b.noQuota = newQuota()
	return b, nil
}

func (b *bench) close() {
	if b.quota != nil {
		if err := b.quota.remove(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	os.RemoveAll(b.dir)
}

// measure does all rounds. Its error is that of the comparison itself, or the
// context's; what a peer did wrong stands in the results.
func (b *bench) measure(ctx context.Context) error {
	for _, p := range b.peers {
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

// round measures everything once.
func (b *bench) round(ctx context.Context, n int) error {
	began := time.Now()
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	at := net.JoinHostPort("127.0.0.1", ports[0])
	app, err := launch("app", []string{mustAbs(filepath.Join(b.bin, "app")), "-listen", at}, nil, nil, nil)
	if err != nil {
		return err
	}
	defer app.stop()
	if _, err := app.answers(at, get); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		run  func(ctx context.Context, app string, n int) error
	}{
		{"starts", b.starts},
		{"memory", b.memory},
		{"loads", b.loads},
		{"queue", b.queue},
	} {
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s (%.0f s)\n", n+1, b.results.Settings.Rounds, step.name, time.Since(began).Seconds())
		if err := step.run(ctx, at, n); err != nil {
			return err
		}
	}
	return nil
}

// A running peer.
type running struct {
	*peer
	*process
	at    *place
	took  time.Duration // from exec to its first answer
	lines *lineCounter  // nil: it writes no lines
	spans *spanSink     // nil: it sends no spans
}

func (r *running) name() string { return r.peer.name }

// stop ends the peer and who listens to it.
func (r *running) stop() {
	r.process.stop()
	if r.spans != nil {
		r.spans.close()
	}
}

// told returns what counts the lines or spans that have come from it.
func (r *running) told() func() int {
	if r.lines != nil {
		return r.lines.count
	}
	return r.spans.count
}

// start starts a peer and waits until it answers. q may be nil.
func (b *bench) start(p *peer, app string, limit int, q *quota) (_ *running, err error) {
	ports, err := freePorts(6)
	if err != nil {
		return nil, err
	}
	local := func(i int) string { return net.JoinHostPort("127.0.0.1", ports[i]) }
	at := &place{
		App: app, Address: local(0), H2C: local(0), TLS: local(1),
		Cert: b.certs[0], Key: b.certs[1], Pair: b.certs[2],
		Concurrency: limit,
		admin:       ports[2], autoscaler: ports[3], metrics: ports[4], status: ports[5],
	}
	if at.Dir, err = os.MkdirTemp(b.dir, "peer"); err != nil {
		return nil, err
	}
	r := &running{peer: p, at: at}
	var out io.Writer
	switch p.tells {
	case "line":
		r.lines = &lineCounter{}
		out = r.lines
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
	argv, env, err := p.command(p.program, at)
	if err != nil {
		return nil, err
	}
	var before func(int) error
	if q != nil {
		before = q.add
	}
	if r.process, err = launch(p.name, argv, env, before, out); err != nil {
		return nil, err
	}
	if r.took, err = r.answers(at.Address, p.ask()); err != nil {
		r.process.stop()
		return nil, err
	}
	return r, nil
}

// starts measures the time from exec to the first answer, also with as little CPU
// as a small pod gets.
func (b *bench) starts(ctx context.Context, app string, n int) error {
	kinds := []struct {
		id    string
		quota *quota
	}{{"start/plain", nil}, {"start/quota", b.quota}}
	for _, kind := range kinds {
		if kind.id == "start/quota" && b.quota == nil {
			b.results.note(kind.id, ours, "not measured: "+b.noQuota.Error())
			continue
		}
		took := map[string][]float64{}
		for i := range b.results.Settings.Starts {
			for _, p := range rotate(b.peers, n+i) {
				r, err := b.start(p, app, concurrency, kind.quota)
				if err := b.failed(ctx, kind.id, p.name, err); err != nil {
					return err
				}
				if err == nil {
					took[p.name] = append(took[p.name], milliseconds(r.took))
					r.stop()
				}
			}
		}
		for name, values := range took {
			b.results.add(kind.id, name, median(values))
		}
	}
	return nil
}

// settle is how long a process that was started has for what it does after its
// first answer.
const settle = 500 * time.Millisecond

// memory measures a fresh process: idle, and the most that it has used with 64
// and 1000 connections that all have requests under way.
func (b *bench) memory(ctx context.Context, app string, n int) error {
	for _, p := range rotate(b.peers, n) {
		if err := b.failed(ctx, "memory/idle", p.name, b.memoryOf(p, app)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) memoryOf(p *peer, app string) error {
	r, err := b.start(p, app, concurrency, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	time.Sleep(settle)
	idle, err := r.memory("VmRSS")
	if err != nil {
		return err
	}
	b.results.add("memory/idle", p.name, idle/1e6)
	for _, connections := range []int{64, 1000} {
		seconds := time.Duration(b.results.Settings.Seconds) * time.Second
		if _, err := closedLoop(r.at.Address, "/", connections, seconds); err != nil {
			return err
		}
		most, err := r.memory("VmHWM")
		if err != nil {
			return err
		}
		b.results.add(fmt.Sprintf("memory/%d", connections), p.name, most/1e6)
		if connections == 1000 {
			b.results.add("memory/each", p.name, (most-idle)/1e3/float64(connections))
		}
	}
	return nil
}

// loads starts all peers, which cost nothing while they are not asked, and goes
// through the loads; for each load, through the peers.
func (b *bench) loads(ctx context.Context, app string, n int) error {
	var all []*running
	defer func() {
		for _, r := range all {
			r.stop()
		}
	}()
	for _, p := range append(slices.Clip(b.peers), b.variants...) {
		r, err := b.start(p, app, concurrency, nil)
		if err == nil {
			all = append(all, r)
			_, err = closedLoop(r.at.Address, "/", 64, settle) // its pools fill
		}
		if err := b.failed(ctx, "cpu/"+loads[0].id, p.name, err); err != nil {
			return err
		}
	}
	peers := slices.DeleteFunc(slices.Clone(all), func(r *running) bool { return slices.Contains(b.variants, r.peer) })
	variants := slices.DeleteFunc(slices.Clone(all), func(r *running) bool { return slices.Contains(b.peers, r.peer) })

	for i := range loads {
		l := &loads[i]
		for _, r := range rotate(peers, n) {
			_, err := b.load(ctx, l, r)
			if err := b.failed(ctx, "cpu/"+l.id, r.name(), err); err != nil {
				return err
			}
		}
		if l.id == telemetryLoad {
			for _, r := range rotate(variants, n) {
				if err := b.failed(ctx, "cpu/"+l.id, r.name(), b.telemetry(ctx, l, r)); err != nil {
					return err
				}
			}
		}
		if l.streams == 0 && !l.tls { // it speaks nothing else
			o, err := l.run(ctx, &place{Dir: b.dir, Address: app}, b.results.Settings.Seconds)
			if err := b.failed(ctx, "rate/"+l.id, appAlone, err); err != nil {
				return err
			}
			if err == nil {
				b.results.add("rate/"+l.id, appAlone, o.perSec)
			}
		}
	}
	return b.latencies(ctx, app, rotate(peers, n))
}

// load is one load on one peer. It returns how many requests were answered.
func (b *bench) load(ctx context.Context, l *load, r *running) (int, error) {
	before, err := r.cpu()
	if err != nil {
		return 0, err
	}
	o, err := l.run(ctx, r.at, b.results.Settings.Seconds)
	if err != nil {
		return 0, err
	}
	after, err := r.cpu()
	if err != nil {
		return 0, err
	}
	b.results.add("cpu/"+l.id, r.name(), microseconds(after-before)/float64(o.requests))
	b.results.add("rate/"+l.id, r.name(), o.perSec)
	return o.requests, nil
}

// telemetry is a load on a variant of ours, which must have told of the requests.
func (b *bench) telemetry(ctx context.Context, l *load, r *running) error {
	count := r.told()
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
		err = errors.Join(err, r.spans.misunderstood())
	}
	return err
}

// A turn is what a second or a few found.
type turn struct {
	took   []time.Duration
	stolen int // from this machine meanwhile, in ticks
}

// takeTurn measures, and what was stolen meanwhile.
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

// undisturbed returns the half of the turns from which least was stolen: a
// millisecond in which the machine stands still is nobody's latency, and would be
// all of a 99th percentile.
func undisturbed(all []turn) []turn {
	sorted := slices.SortedStableFunc(slices.Values(all), func(a, b turn) int { return a.stolen - b.stolen })
	return sorted[:(len(sorted)+1)/2]
}

// latencies measures what each peer adds to the latency of the app at a rate that
// does not change, and what it costs there. All take turns, each for a second.
func (b *bench) latencies(ctx context.Context, app string, peers []*running) error {
	var direct []turn
	of := make(map[*running][]turn)
	cpu := make(map[*running]time.Duration)
	for n := range 4 * b.results.Settings.Seconds {
		t, err := takeTurn(latency(app))
		if err != nil {
			return fmt.Errorf("the app alone: %w", err)
		}
		direct = append(direct, t)
		for _, r := range rotate(peers, n) {
			t, used, err := r.latency()
			if err := b.failed(ctx, "added/p99", r.name(), err); err != nil {
				return err
			}
			if err != nil { // this round is left out
				peers = slices.DeleteFunc(slices.Clone(peers), func(p *running) bool { return p == r })
				delete(of, r)
				continue
			}
			of[r], cpu[r] = append(of[r], t), cpu[r]+used
		}
	}
	direct = undisturbed(direct)
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
			took := p.of(undisturbed(all))
			b.results.add("latency/"+p.id, r.name(), took)
			b.results.add("added/"+p.id, r.name(), took-p.of(direct))
		}
	}
	return nil
}

// latency asks the address for a second.
func latency(address string) func() ([]time.Duration, error) {
	return func() ([]time.Duration, error) {
		return openLoop(address, "/", openRate, openConnections, time.Second)
	}
}

// latency asks the peer for a second and returns the CPU time that it used.
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

// percentiles are the ones that are told of.
var percentiles = []rank{{"p50", 50}, {"p99", 99}}

type rank struct {
	id string
	p  float64
}

// of returns the median of the turns' percentiles, in microseconds.
func (r rank) of(all []turn) float64 {
	var each []float64
	for _, t := range all {
		each = append(each, microseconds(percentile(t.took, r.p)))
	}
	return median(each)
}

// queue measures how evenly those wait who want an app that takes fewer at once:
// ten times the load that it can take, for ever.
func (b *bench) queue(ctx context.Context, app string, n int) error {
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

func (b *bench) queueOf(p *peer, app string) error {
	r, err := b.start(p, app, queueConcurrency, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	var all []turn
	for range 4 {
		t, err := takeTurn(func() ([]time.Duration, error) {
			d := time.Duration(max(2, b.results.Settings.Seconds)) * time.Second // less is all growing and shrinking
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
	for _, t := range undisturbed(all) {
		waits = append(waits, t.took...)
	}
	p50, p99 := percentile(waits, 50), percentile(waits, 99)
	b.results.add("queue/p50", p.name, milliseconds(p50))
	b.results.add("queue/p99", p.name, milliseconds(p99))
	b.results.add("queue/spread", p.name, float64(p99)/float64(p50))
	return nil
}

// steadyWaits returns how long requests waited before the app began with them,
// while the line was of its full length: the first three of each client stand in
// a line that still grows, its last one in one that shrinks.
func steadyWaits(took [][]time.Duration) ([]time.Duration, error) {
	const first, last = 3, 1
	var waits []time.Duration
	for _, of := range took {
		for i := first; i < len(of)-last; i++ {
			waits = append(waits, of[i]-queueService)
		}
	}
	if len(waits) < len(took) {
		return nil, fmt.Errorf("only %d waits of %d clients are left to judge by", len(waits), len(took))
	}
	return waits, nil
}

// failed notes what a peer did wrong, and lets the others go on. Its own error is
// that of the context.
func (b *bench) failed(ctx context.Context, measure, peer string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s, %s: %v\n", measure, peer, err)
		b.results.fail(measure, peer, strings.SplitN(err.Error(), "\n", 2)[0])
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
