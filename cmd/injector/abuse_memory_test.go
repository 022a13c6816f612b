//go:build load

package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Limits of a review in package webhook.
const (
	maxReviewBytes = 8 << 20
	maxValues      = 50_000
)

// reviewOf returns a review of a pod with a container named web. spec and container are
// additional fields of the pod spec and the container.
func reviewOf(spec, container string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","namespace":"shop","resource":{"version":"v1","resource":"pods"},` +
		`"object":{"metadata":{"name":"web"},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]` + container + `}]` + spec + `}}}}`
}

// list returns a JSON list with n copies of an item.
func list(item string, n int) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }

// heaviest returns the reviews that use the most memory: with the maximum length, the maximum
// number of values, or both.
func heaviest() map[string]string {
	const values, size = maxValues - 100, maxReviewBytes - 2000
	full := fmt.Sprintf(`{"name":"%s"}`, strings.Repeat("x", size/(values/2)-13))
	return map[string]string{
		"volumes":                reviewOf(`,"volumes":`+list(`{"name":""}`, values/2), ""),
		"variables, full length": reviewOf("", `,"env":`+list(full, values/2)),
		"ports":                  reviewOf(`,"initContainers":[{"name":"a","restartPolicy":"Always","ports":`+list(`{"containerPort":1}`, values/2)+`}]`, ""),
		"probes":                 reviewOf("", `,"livenessProbe":{"httpGet":{"port":8080,"httpHeaders":`+list(`{"name":"a"}`, values/2)+`}}`),
		"small maps":             reviewOf(`,"x":`+list(`{"a":0}`, values/2), ""),
		"a long variable":        reviewOf("", `,"env":[{"name":"a","value":"`+strings.Repeat("x", size)+`"}]`),
		"line separators":        reviewOf("", `,"lifecycle":{"preStop":{"exec":{"command":["`+strings.Repeat("\u2028", size/3)+`"]}}}`),
		"less-than signs":        reviewOf("", `,"lifecycle":{"preStop":{"exec":{"command":["`+strings.Repeat("<", size)+`"]}}}`),
		"600000 variables":       reviewOf("", `,"env":`+list(`{"name":""}`, 600_000)),
		"2500000 empty maps":     reviewOf(`,"volumes":`+list(`{}`, 2_500_000), ""),
	}
}

// For each kind, the test sends 16 of the heaviest reviews together with the maximum number of incomplete
// reviews. The injector must decide at least one review within the memory limit of deploy/base. Each kind
// uses a separate injector, and the kinds run in parallel because the test mostly waits for
// timeouts.
func TestHeaviestReviewsStayWithinMemoryLimit(t *testing.T) {
	program := buildInjector(t)
	for name, body := range heaviest() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(body) > maxReviewBytes {
				t.Fatalf("got %d bytes, want at most %d", len(body), maxReviewBytes)
			}
			p := startInjector(t, program)
			others := inTheBody.open(t, p, betweenRequests.open(t, p, nil))
			got := answersTo(t, p, body, 16)
			for _, c := range others {
				c.(*tls.Conn).NetConn().Close()
			}
			peak := p.peak(t)
			t.Logf("%d bytes: peak memory %d MB, %v", len(body), peak>>20, got)
			if peak > injectorMemory {
				t.Errorf("got a peak of %d MB of memory, want at most %d", peak>>20, injectorMemory>>20)
			}
			if got["injected"]+got["too-large"]+got["unreadable"] == 0 {
				t.Errorf("got %v, want at least one decision", got)
			}
		})
	}
}

// answersTo sends concurrent copies of a review, and returns the number of responses by kind.
func answersTo(t *testing.T, p *served, body string, times int) map[string]int {
	t.Helper()
	client := &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots}}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[string]int{}
	for range times {
		all.Go(func() {
			answer := ask(t, client, p, body)
			mu.Lock()
			defer mu.Unlock()
			got[answer]++
		})
	}
	all.Wait()
	return got
}

// ask sends a review and returns the kind of its response.
func ask(t *testing.T, client *http.Client, p *served, body string) string {
	t.Helper()
	r, err := client.Post("https://"+p.reviews+"/inject", "application/json", strings.NewReader(body))
	if err != nil {
		return "ended" // the server closed the connection after a timeout
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode == http.StatusServiceUnavailable || bytes.Equal(text, []byte("read request body: unexpected end\n")) {
		return "no time"
	}
	var review struct {
		Response struct{ AuditAnnotations map[string]string }
	}
	if r.StatusCode != http.StatusOK || json.Unmarshal(text, &review) != nil {
		t.Errorf("got %d %.200s, want a review", r.StatusCode, text)
	}
	notes := review.Response.AuditAnnotations
	if notes["reason"] != "" {
		return notes["reason"]
	}
	return notes["verdict"]
}
