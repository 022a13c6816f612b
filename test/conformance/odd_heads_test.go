package conformance

import (
	"strings"
	"testing"
)

// Of a head with two oddities the second one counts as much as the first.
func TestAnOddTargetHidesNothingElseThatIsOdd(t *testing.T) {
	p := newProxy(t)
	app := newLedger()
	p.app(app)
	p.start()
	for what, c := range map[string]struct {
		lines []string
		want  int
	}{
		"a Host that is none":       {[]string{"GET http://u@a.example/ HTTP/1.1", "Host: a b@/"}, 400},
		"an expectation nobody has": {[]string{"GET http://u@a.example/ HTTP/1.1", "Host: a", "Expect: more"}, 417},
	} {
		id := newID()
		w := dial(t, p.addr())
		w.send(strings.Join(append(c.lines, "X-Id: "+id), "\r\n") + "\r\n\r\n")
		if m := w.receive("GET"); m.status() != c.want || word(m.get("Proxy-Status")) != "bad-request" || app.count(id) != 0 {
			t.Errorf("%s: got %v and %d requests at the app, want our %d and none", what, m, app.count(id), c.want)
		}
	}
}

// A client may send what is meant for the tunnel right behind its CONNECT. Where there is
// none that is no request of its own.
func TestWhatFollowsARefusedConnectIsNoRequest(t *testing.T) {
	p := newProxy(t)
	app := newLedger()
	p.app(app)
	p.start()
	id := newID()
	w := dial(t, p.addr())
	w.send("CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\n\r\n" + "GET / HTTP/1.1\r\nHost: a\r\nX-Id: " + id + "\r\n\r\n")
	if m := w.receive("CONNECT"); m.status() != 400 {
		t.Fatalf("got %v, want 400", m)
	}
	w.closed()
	if app.count(id) != 0 {
		t.Errorf("the app has got %d requests, want none", app.count(id))
	}
}
