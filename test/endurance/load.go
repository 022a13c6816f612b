//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// options are the options of a client load. Each load uses only some of the options.
type options struct {
	target   string        // address of the application or of the proxy
	ca       string        // PEM file with the certificate of the target; "" means plain text
	seconds  int           // duration of the load
	requests int           // minimum number of requests; the load runs longer if necessary
	conns    int           // number of connections
	streams  int           // number of concurrent calls on each connection
	rate     int           // calls per second in total; 0 means no limit
	size     int           // number of bytes of content in a request message
	reply    int           // number of bytes of content in a response message
	delay    time.Duration // time that the application waits before it responds
	deadline time.Duration // deadline of a call; 0 means none
	share    int           // every share-th call has a deadline; 0 means that every call has one
	cancel   time.Duration // calls are canceled at a random time between 0 and twice this time; 0 means never
	path     string        // path and query of an HTTP request
	count    int           // number of messages in a stream, or number of variants of a call
	gzip     bool          // messages are compressed
	late     time.Duration // time from the response header to the first read of the content
	pause    time.Duration // mean time between two calls of a worker; 0 means no delay
	command  []string      // command that the load "repeat" runs, with its arguments
}

func readOptions(name string, args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.StringVar(&o.target, "target", "", "address of the server")
	f.StringVar(&o.ca, "ca", "", "PEM file with the CA certificate; if empty, TLS is not used")
	f.IntVar(&o.seconds, "seconds", 6, "duration of the load in seconds")
	f.IntVar(&o.requests, "requests", 0, "minimum number of requests")
	f.IntVar(&o.conns, "conns", 1, "number of connections")
	f.IntVar(&o.streams, "streams", 1, "number of concurrent calls on each connection")
	f.IntVar(&o.rate, "rate", 0, "number of calls per second")
	f.IntVar(&o.size, "size", 100, "length of a request message in bytes")
	f.IntVar(&o.reply, "reply", 100, "length of a response message in bytes")
	f.DurationVar(&o.delay, "delay", 0, "time that the application waits before it responds")
	f.DurationVar(&o.deadline, "deadline", 0, "deadline of a call")
	f.IntVar(&o.share, "share", 1, "set a deadline for every n-th call")
	f.DurationVar(&o.cancel, "cancel", 0, "mean time after which a call is canceled")
	f.StringVar(&o.path, "path", "/", "path and query of the requests")
	f.IntVar(&o.count, "count", 1, "number of messages in a stream")
	f.BoolVar(&o.gzip, "gzip", false, "compress messages")
	f.DurationVar(&o.late, "late", 0, "time between the header section and the first read of the body")
	f.DurationVar(&o.pause, "pause", 0, "mean time between two calls")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.command = f.Args()
	return o, nil
}

// A load is a running client load.
type load struct {
	options
	tally   tally
	started time.Time
}

// maxCallTime is the timeout of a call if the load sets no deadline.
const maxCallTime = 30 * time.Second

// maxLoadTime bounds a load that does not reach its minimum number of requests.
const maxLoadTime = 2 * time.Minute

// runLoad runs a client load and prints its result.
func runLoad(ctx context.Context, name string, args []string) error {
	o, err := readOptions(name, args)
	if err != nil {
		return err
	}
	run := loads()[name]
	if run == nil {
		return fmt.Errorf("client %s: unknown", name)
	}
	l := &load{options: *o, started: time.Now()}
	if err := run(ctx, l); err != nil {
		return fmt.Errorf("client %s: %w", name, err)
	}
	return l.tally.print(os.Stdout)
}

// more reports whether the load continues.
func (l *load) more() bool {
	elapsed := time.Since(l.started)
	if elapsed < time.Duration(l.seconds)*time.Second {
		return true
	}
	return l.tally.requests() < l.requests && elapsed < maxLoadTime
}

// repeat runs the call in a loop in conns x streams goroutines, or at the rate if it is set.
// call gets the index of its connection and a sequence number.
func (l *load) repeat(ctx context.Context, call func(ctx context.Context, conn, n int)) {
	if l.rate > 0 {
		l.repeatAtRate(ctx, call)
		return
	}
	var wg sync.WaitGroup
	for worker := range l.conns * l.streams {
		wg.Go(func() {
			for n := worker; l.more() && ctx.Err() == nil; n += l.conns * l.streams {
				call(ctx, worker%l.conns, n)
				l.wait()
			}
		})
	}
	wg.Wait()
}

// wait waits for the pause between two calls, which varies by up to 2 %.
func (l *load) wait() {
	if l.pause > 0 {
		time.Sleep(l.pause*98/100 + rand.N(l.pause*4/100))
	}
}

// maxConcurrent bounds the concurrent calls of a load with a rate.
const maxConcurrent = 4000

// repeatAtRate starts l.rate calls per second. It delays calls while maxConcurrent calls are in
// progress. Every 2 ms, it starts the calls that are due.
func (l *load) repeatAtRate(ctx context.Context, call func(ctx context.Context, conn, n int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxConcurrent)
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for n := 0; l.more() && ctx.Err() == nil; <-ticker.C {
		for due := int(time.Since(l.started).Seconds() * float64(l.rate)); n < due; n++ {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				call(ctx, n%l.conns, n)
			})
		}
	}
	wg.Wait()
}

// callContext returns the context of the n-th call, and whether the call is expected to
// expire or to be canceled.
func (l *load) callContext(parent context.Context, n int) (ctx context.Context, stop context.CancelFunc, bounded bool) {
	if l.cancel == 0 && l.deadline > 0 && n%max(1, l.share) == 0 {
		ctx, stop = context.WithTimeout(parent, l.deadline)
		return ctx, stop, true
	}
	ctx, cancel := context.WithTimeout(parent, maxCallTime)
	if l.cancel == 0 {
		return ctx, cancel, false
	}
	timer := time.AfterFunc(rand.N(2*l.cancel), cancel)
	return ctx, func() { timer.Stop(); cancel() }, true
}

// tlsConfig returns the TLS settings of the client, or nil if it does not use TLS.
func (l *load) tlsConfig() (*tls.Config, error) {
	if l.ca == "" {
		return nil, nil
	}
	text, err := os.ReadFile(l.ca)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CA: %s: no certificate", l.ca)
	}
	return &tls.Config{RootCAs: pool}, nil
}

// content is a sequence of pseudo-random bytes that all peers derive from the same seed.
type content []byte

// maxContent is the maximum size of a message in bytes. seeds is the number of different messages
// of the same size. A message with seed n begins at offset n of the content.
const (
	maxContent = 8 << 20
	seeds      = 97
)

func newContent() content {
	c := make(content, maxContent+seeds)
	rand.NewChaCha8([32]byte{1}).Read(c)
	return c
}

// piece returns size bytes for a seed. The caller must not change the returned bytes.
func (c content) piece(seed, size int) []byte {
	seed %= seeds
	return c[seed : seed+min(size, maxContent)]
}

// sum returns the checksum of b in hexadecimal digits.
func sum(b []byte) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(b)) }
