package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queue-proxy/queue-proxy/pkg/fair"
	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// valuesOf returns the number of values in decoded JSON.
func valuesOf(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, child := range v {
			n += valuesOf(child)
		}
	case []any:
		for _, child := range v {
			n += valuesOf(child)
		}
	}
	return n
}

// FuzzCounter writes JSON in two parts and compares the count with the number of decoded values.
// The count must not be smaller, and must be at most twice as large.
func FuzzCounter(f *testing.F) {
	f.Add([]byte(`{"a":[1,"b,[{",{}],"c\\\"{":null}`), 3)
	f.Add([]byte(`[[],[],{}]`), 0)
	f.Add([]byte(`"\\"`), 2)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		var v any
		if json.Unmarshal(text, &v) != nil {
			return
		}
		cut = max(0, min(cut, len(text)))
		var c counter
		_, _ = c.Write(text[:cut])
		_, _ = c.Write(text[cut:])
		got, want := 1+c.values, valuesOf(v)
		if _, twice := v.(map[string]any); got < want && !twice || got > 2*want && !hasKeyTwice(text) {
			t.Errorf("%s: got %d values, want %d or at most twice as many", text, got, want)
		}
	})
}

// hasKeyTwice reports whether a JSON object has a duplicate key. The decoder only returns the last
// value of such a key.
func hasKeyTwice(text []byte) bool {
	var v any
	_ = json.Unmarshal(text, &v)
	again, _ := json.Marshal(v)
	return strings.Count(string(again), ":") < strings.Count(string(text), ":")
}

func TestTooManyValuesAreRefused(t *testing.T) {
	many := strings.Replace(goodPod, `"image":"web:1"`, `"env":[{}`+strings.Repeat(`,{}`, maxValues/2)+`]`, 1)
	for lenient, allowed := range map[bool]bool{false: false, true: true} {
		v := newReviewer(nil)
		v.Lenient = lenient
		a := review(t, serve(t, v), []byte(many), nil)
		if a.Allowed != allowed || a.Patch != nil || a.AuditAnnotations["reason"] != inject.TooLarge {
			t.Errorf("lenient %v: got allowed %v, %d bytes of patch and notes %v, want %v, 0 and too-large", lenient, a.Allowed, len(a.Patch), a.AuditAnnotations, allowed)
		}
		harness.Contains(t, fmt.Sprint(a.Result, a.Warnings), "exceeds the limit of 50000 JSON values", "lenient", lenient)
	}
	few := strings.Replace(goodPod, `"image":"web:1"`, `"env":[{"name":"a"}`+strings.Repeat(`,{"name":"a"}`, maxValues/2-100)+`]`, 1)
	if a := review(t, serve(t, newReviewer(nil)), []byte(few), nil); a.Patch == nil {
		t.Errorf("fewer values: got %v, want injected", a.Result)
	}
}

// Unused fields of a review must not be kept in memory. A user with two million groups would need
// 60 times the memory of the JSON text.
func TestUnusedFieldsOfReviewUseNoMemory(t *testing.T) {
	groups := strings.Replace(string(question([]byte(goodPod), nil)), `"userInfo":{}`, `"userInfo":{"groups":[""`+strings.Repeat(`,""`, 2_000_000)+`]}`, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := parse([]byte(groups))
	runtime.ReadMemStats(&after)
	if err != nil || r.Request.Namespace != "shop" || len(groups) < 4_000_000 {
		t.Fatalf("got %v, %v for %d bytes, want the review", r, err, len(groups))
	}
	if got := int(after.TotalAlloc - before.TotalAlloc); got > 2*len(groups) {
		t.Errorf("got %d bytes allocated for %d, want at most twice as many", got, len(groups))
	}
}

// Long reviews must not use the memory of short reviews.
func TestLongReviewsDoNotDelayShortReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newReviewer(nil)
		decisions, texts := acquireAll(t, v.long, memoryOfLong), acquireAll(t, v.texts, memoryOfTexts)
		post := func(body []byte) int { return recorded(v, body).Code }
		begin := time.Now()
		if got := post(question([]byte(goodPod), nil)); got != http.StatusOK || time.Since(begin) > 0 {
			t.Errorf("a short review: got %d after %v, want 200 immediately", got, time.Since(begin))
		}
		long := question([]byte(strings.Replace(goodPod, "web:1", strings.Repeat("w", smallBytes), 1)), nil)
		if got := post(long); got != http.StatusServiceUnavailable || time.Since(begin) != reviewTimeout {
			t.Errorf("a long review: got %d after %v, want 503 after %v", got, time.Since(begin), reviewTimeout)
		}
		texts.Release()
		if got := post(long); got != http.StatusServiceUnavailable || time.Since(begin) != 2*reviewTimeout {
			t.Errorf("a long review that was read: got %d after %v, want 503 after %v", got, time.Since(begin), 2*reviewTimeout)
		}
		decisions.Release()
		harness.Equal(t, post(long), http.StatusOK, "a long review with sufficient memory")
		for name, s := range map[string]*fair.Semaphore{"short": v.short, "long": v.long, "texts": v.texts} {
			if holders, waiting := s.Load(); holders+waiting > 0 {
				t.Errorf("%s: got %d holders and %d waiting at the end, want none", name, holders, waiting)
			}
		}
	})
}

// acquireAll reserves all bytes of a semaphore.
func acquireAll(t *testing.T, s *fair.Semaphore, bytes int) *fair.Slot {
	t.Helper()
	slot, err := s.Acquire(t.Context(), fair.Request{Weight: bytes})
	harness.NoError(t, err)
	return slot
}
