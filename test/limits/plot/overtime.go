package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/queue-proxy/queue-proxy/test/limits/simulation"
)

// The limit over time: a panel for each app, in two columns. Sizes are in pixels.
const (
	panelWidth  = 430
	panelHeight = 186
	left        = 34 // of the panel's axes
	right       = 14
	top         = 46
	bottom      = 24
	legend      = 30

	mostLimit = 32
)

// overTime draws the limit over time.
func overTime(all []outcome) []byte {
	rows := (len(all) + 1) / 2
	c := newCanvas(2*panelWidth, legend+rows*panelHeight)
	x := 10.0
	for _, l := range []struct {
		name, colour string
		more         []string
	}{
		{"adaptive limit", blue, []string{thick}},
		{"in force for a moment, to be compared", paleBlue, nil},
		{"best fixed limit", green, []string{dashed}},
	} {
		c.line(fmt.Sprintf("M%s 18h24", n(x)), l.colour, l.more...)
		c.text(x+30, 22, l.name)
		x += 50 + 5.5*float64(len(l.name))
	}
	c.rect(x, 10, 24, 16, shade)
	c.text(x+30, 22, "the first 30 s, which are not measured")
	for i, o := range all {
		p := panel{c, float64(i % 2 * panelWidth), float64(legend + i/2*panelHeight), o.app.For}
		p.draw(&o)
	}
	return c.end()
}

// A panel is a place for one app.
type panel struct {
	*canvas
	x0, y0 float64
	lasts  time.Duration
}

func (p *panel) x(at time.Duration) float64 {
	return p.x0 + left + (panelWidth-left-right)*at.Seconds()/p.lasts.Seconds()
}

func (p *panel) y(limit int) float64 {
	const height = panelHeight - top - bottom
	return p.y0 + top + height*(1-float64(limit)/mostLimit)
}

func (p *panel) draw(o *outcome) {
	p.text(p.x0+left, p.y0+18, o.app.Name, bold, `font-size="12"`)
	for i, line := range lines(o.app.What, 74) {
		p.text(p.x0+left, p.y0+30+11*float64(i), line, pale, `font-size="10"`)
	}
	p.rect(p.x(0), p.y(mostLimit), p.x(simulation.Settled)-p.x(0), p.y(0)-p.y(mostLimit), shade)
	for limit := 0; limit <= mostLimit; limit += 8 {
		p.line(fmt.Sprintf("M%s %sH%s", n(p.x(0)), n(p.y(limit)), n(p.x(p.lasts))), grid)
		p.text(p.x(0)-6, p.y(limit)+4, fmt.Sprint(limit), atEnd, pale)
	}
	for at := time.Duration(0); at <= p.lasts; at += 30 * time.Second {
		s := fmt.Sprint(int(at.Seconds()))
		if at+30*time.Second > p.lasts {
			s += " s"
		}
		p.text(p.x(at), p.y(0)+15, s, middle, pale)
	}
	p.line(p.steps(o.points, func(s simulation.Point) int { return s.State.Limit }), paleBlue)
	p.line(fmt.Sprintf("M%s %sH%s", n(p.x(0)), n(p.y(o.limit)), n(p.x(p.lasts))), green, dashed)
	p.line(p.steps(o.points, func(s simulation.Point) int { return s.State.Base }), blue, thick)
}

// steps returns the path of a value that stays until the next.
func (p *panel) steps(points []simulation.Point, value func(simulation.Point) int) string {
	var b strings.Builder
	last := -1
	for _, s := range points {
		v := value(s)
		switch {
		case last < 0:
			fmt.Fprintf(&b, "M%s %s", n(p.x(s.At)), n(p.y(v)))
		case v != last:
			fmt.Fprintf(&b, "H%sV%s", n(p.x(s.At)), n(p.y(v)))
		}
		last = v
	}
	fmt.Fprintf(&b, "H%s", n(p.x(p.lasts)))
	return b.String()
}

// lines breaks a text into lines of so many letters at most.
func lines(s string, most int) (all []string) {
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len(line)+1+len(word) > most {
			all, line = append(all, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(all, line)
}
