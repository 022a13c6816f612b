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

// What the injector takes in one review.
const (
	mostBytes  = 8 << 20
	mostValues = 50_000
)

// reviewOf is a review of a pod with a container web, to whose fields, and to those of the
// pod's spec, something is added.
func reviewOf(spec, container string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","namespace":"shop","resource":{"version":"v1","resource":"pods"},` +
		`"object":{"metadata":{"name":"web"},"spec":{"containers":[{"name":"web","ports":[{"containerPort":8080}]` + container + `}]` + spec + `}}}}`
}

// list is a list of so many times the same.
func list(item string, n int) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }

// heaviest are reviews that are as long as may be, or have as many values, or both: of each
// the kind that takes most memory for its bytes and values.
func heaviest() map[string]string {
	const values, size = mostValues - 100, mostBytes - 2000
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

// Of each kind, 16 of the heaviest at once, beside as many connections as are kept, of which
// each is in the midst of a review: they are decided as far as the time goes, in the memory
// that deploy/ gives. Kinds run side by side, each with an injector of its own, because most
// of the time is spent waiting for deadlines.
func TestTheHeaviestReviewsAtOnceFitInTheMemory(t *testing.T) {
	program := buildInjector(t)
	for name, body := range heaviest() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(body) > mostBytes {
				t.Fatalf("got %d bytes, want at most %d", len(body), mostBytes)
			}
			p := startInjector(t, program)
			others := inTheBody.come(t, p, betweenRequests.come(t, p, nil))
			got := answersTo(t, p, body, 16)
			for _, c := range others {
				c.(*tls.Conn).NetConn().Close()
			}
			peak := p.peak(t)
			t.Logf("%d bytes: at most %d MB, %v", len(body), peak>>20, got)
			if peak > injectorMemory {
				t.Errorf("it took up to %d MB, want at most %d", peak>>20, injectorMemory>>20)
			}
			if got["injected"]+got["too-large"]+got["unreadable"] == 0 {
				t.Errorf("got %v, want some of them decided", got)
			}
		})
	}
}

// answersTo sends the same review so many times at once, and counts the answers.
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

// ask sends a review and returns what became of it, in a word.
func ask(t *testing.T, client *http.Client, p *served, body string) string {
	t.Helper()
	r, err := client.Post("https://"+p.reviews+"/inject", "application/json", strings.NewReader(body))
	if err != nil {
		return "ended" // its time was over in the midst of it
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
		t.Errorf("got %d %.200s, want a verdict", r.StatusCode, text)
	}
	notes := review.Response.AuditAnnotations
	if notes["reason"] != "" {
		return notes["reason"]
	}
	return notes["verdict"]
}
