package upstream

import (
	"strings"
	"testing"
	"time"
)

// An app that answers HEAD with a body would have it taken for the next answer.
func TestABodyThatComesLateForAHEADIsNobodysAnswer(t *testing.T) {
	a := app(t, func(p *peer) {
		for r := p.head(); r != nil; r = p.head() {
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
			if r.Method == "HEAD" {
				time.Sleep(2 * time.Millisecond)
			}
			p.say("hello")
		}
	})
	for range 3 {
		ask("HEAD", "/").do(a).want(t, 200, "")
		ask("GET", "/").do(a).want(t, 200, "hello")
	}
	for end := time.Now().Add(10 * time.Second); !a.sendsBodyToHEAD.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the app is not known to send bodies for HEAD")
		}
	}
	ask("HEAD", "/").do(a).want(t, 200, "")
	time.Sleep(3 * headSilence)
	if n := idle(a); n > 1 {
		t.Errorf("got %d idle connections, want that of the GETs alone", n)
	}
}

func TestAConnectionThatWasSilentBehindAHEADIsUsedAgain(t *testing.T) {
	a := app(t, func(p *peer) {
		for p.head() != nil {
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
		}
	})
	for range 3 {
		ask("HEAD", "/").do(a).want(t, 200, "")
		if n := idle(a); n != 0 {
			t.Fatalf("got %d idle connections at once, want 0", n)
		}
		for end := time.Now().Add(10 * time.Second); idle(a) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the connection was not kept")
			}
		}
	}
	if n := idle(a); n != 1 {
		t.Errorf("got %d idle connections, want 1", n)
	}
}

// An app may answer before it has read the body, and cut the connection off: what it
// said is the answer.
func TestAnEarlyAnswerBeforeAResetIsTheAnswer(t *testing.T) {
	const says = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 8\r\n\r\ntoo much"
	for range 20 {
		a := app(t, func(p *peer) {
			p.head()
			p.say(says)
			p.rst()
		})
		k := ask("POST", "/").with(strings.NewReader(strings.Repeat("x", 8<<20)), 8<<20)
		k.do(a).want(t, 413, "too much")
	}
}
