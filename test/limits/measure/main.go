// The command measure compares limits in front of two real apps, the sidecar and all: an
// app with a pool of connections, and one that is bound by CPU. It starts app and sidecar
// anew for each, drives load in a closed and in an open loop, and prints a table of the
// medians over the rounds, in Markdown.
//
//	make limits
//
// The limits are measured in turns, round for round, so that what else the machine does
// harms all alike.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"time"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "app" {
		exit(serve(os.Args[2], os.Args[3]))
	}
	var s settings
	flag.StringVar(&s.proxy, "proxy", "bin/queue-proxy", "the sidecar")
	flag.IntVar(&s.rounds, "rounds", 3, "how often each limit is measured")
	flag.DurationVar(&s.lasts, "time", 5*time.Second, "how long each load is measured")
	flag.DurationVar(&s.search, "search", time.Minute, "how long the adaptive limit has before that")
	app := flag.String("app", "", "only this one, "+cpuBound+" or "+pooled)
	flag.Parse()
	s.apps = []string{cpuBound, pooled}
	if *app != "" {
		s.apps = []string{*app}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(compare(ctx, &s))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type settings struct {
	proxy         string
	apps          []string
	rounds        int
	lasts, search time.Duration
}

// A limit is what the sidecar is started with.
type limit struct {
	name     string
	env      []string
	adaptive bool
}

// limits returns those that are compared.
func limits() []limit {
	all := []limit{{name: "none"}}
	for _, n := range []int{2, 4, 8, 16} {
		all = append(all, limit{name: "fixed, " + strconv.Itoa(n), env: []string{"CONTAINER_CONCURRENCY=" + strconv.Itoa(n)}})
	}
	return append(all, limit{name: "adaptive, ceiling 64", env: []string{"CONCURRENCY_MODE=adaptive", "CONTAINER_CONCURRENCY=64"}, adaptive: true})
}

// compare measures all limits before all apps and prints the tables.
func compare(ctx context.Context, s *settings) error {
	fmt.Printf("%d CPUs, %s, %s/%s\n", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, app := range s.apps {
		capacity, err := capacityOf(ctx, app)
		if err != nil {
			return err
		}
		rate := overload * capacity
		all := make([]results, len(limits()))
		for round := range s.rounds {
			for i, l := range limits() {
				if err := all[i].measure(ctx, s, app, &l, rate); err != nil {
					return fmt.Errorf("%s, %s: %w", app, l.name, err)
				}
				fmt.Fprintf(os.Stderr, "%s, round %d of %d, %s: %s\n", app, round+1, s.rounds, l.name, all[i].last())
			}
		}
		fmt.Print(table(app, rate, all))
	}
	return nil
}

// measure starts app and sidecar with the limit, and adds what both loads bring.
func (r *results) measure(ctx context.Context, s *settings, app string, l *limit, rate float64) error {
	a, err := startApp(ctx, app)
	if err != nil {
		return err
	}
	defer a.stop()
	p, err := startSidecar(ctx, s.proxy, l.env)
	if err != nil {
		return err
	}
	defer p.stop()
	warmUp := time.Second
	if l.adaptive {
		warmUp = s.search
	}
	for i, load := range []load{{clients: clients}, {rate: rate}} {
		load.do(ctx, sidecarAddress, warmUp)
		seen := load.do(ctx, sidecarAddress, s.lasts)
		r.loads[i] = append(r.loads[i], seen)
		warmUp = time.Second
	}
	if r.name = l.name; l.adaptive {
		found, err := limitFound(ctx)
		r.found = append(r.found, found)
		return err
	}
	return ctx.Err()
}

// capacityOf returns how many requests a second the app serves, asked for by few clients.
func capacityOf(ctx context.Context, app string) (float64, error) {
	a, err := startApp(ctx, app)
	if err != nil {
		return 0, err
	}
	defer a.stop()
	l := load{clients: 8}
	l.do(ctx, appAddress, time.Second)
	seen := l.do(ctx, appAddress, 5*time.Second)
	return seen.throughput, ctx.Err()
}
