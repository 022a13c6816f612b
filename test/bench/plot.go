//go:build linux

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
)

// The plot contains a group of horizontal bars for each measure. A line at the end of each bar
// shows the minimum and the maximum of the rounds. Sizes are in pixels.
const (
	plotWidth  = 860
	labelWidth = 330 // width of the labels on the left of the bars
	valueWidth = 70  // width of the values on the right of the bars
	barHeight  = 9
	barStep    = 11
	groupGap   = 9
	panelHead  = 34
)

// colours contains the color of each peer.
var colours = map[string]string{
	ours:     "#1f6feb",
	knative:  "#cf222e",
	baseline: "#8b949e",
	haproxy:  "#d97706",
	nginx:    "#2da44e",
}

// panels lists the parts of the plot. The measures of a panel have a common scale.
var panels = []struct {
	title    string
	measures []string
}{
	{"CPU per request, µs: HTTP/1.1", []string{"cpu/get-1", "cpu/get-16", "cpu/get-64", "cpu/post-10k", "cpu/down-100k"}},
	{"CPU per request, µs: TLS 1.3", []string{"cpu/tls-1", "cpu/tls-16", "cpu/tls-post-10k", "cpu/tls-100k"}},
	{"CPU per request, µs: HTTP/2", []string{"cpu/h2c-1x100", "cpu/h2c-4x16", "cpu/h2tls-4x16"}},
	{"CPU per call, µs: gRPC", []string{"cpu/grpc-1x1", "cpu/grpc-1x64", "cpu/grpc-16x4"}},
	{"additional latency at 1000 requests per second, µs", []string{"added/p50", "added/p99"}},
	{"memory of a process, MB", []string{"memory/64", "memory/1000"}},
	{"memory per sidecar with 40 sidecars, MB", []string{"density/share", "density/private"}},
	{"time to the first response, ms", []string{"start/plain"}},
}

// plot returns the medians as SVG. Bars start at zero, and negative values are drawn as zero.
func plot(r *Results) []byte {
	var b bytes.Buffer
	y := 16
	x := 10
	for _, p := range proxies {
		rect(&b, x, y, 10, 10, colours[p], "")
		text(&b, x+14, y+9, "start", p)
		x += 30 + 8*len(p)
	}
	y += 18
	for _, panel := range panels {
		text(&b, 10, y+22, "start", panel.title)
		y += panelHead
		most := 0.0
		for _, id := range panel.measures {
			for _, p := range proxies {
				if c := r.Cells[id][p]; c != nil && len(c.Values) > 0 {
					most = max(most, slices.Max(c.Values))
				}
			}
		}
		if most <= 0 {
			continue
		}
		scale := func(v float64) int {
			return int(max(v, 0) / most * (plotWidth - labelWidth - valueWidth))
		}
		for _, id := range panel.measures {
			_, m := findRow(id)
			text(&b, labelWidth-8, y+barStep*len(proxies)/2+4, "end", m.title)
			for _, p := range proxies {
				if c := r.Cells[id][p]; c != nil && len(c.Values) > 0 {
					v := median(c.Values)
					rect(&b, labelWidth, y, scale(v), barHeight, colours[p], p+": "+m.text(c, withSpread))
					low, high := scale(slices.Min(c.Values)), scale(slices.Max(c.Values))
					rect(&b, labelWidth+low, y+barHeight/2, high-low, 1, "#24292f", "")
					text(&b, labelWidth+max(high, scale(v))+4, y+barHeight, "start", strconv.FormatFloat(v, 'f', m.digits, 64))
				}
				y += barStep
			}
			y += groupGap
		}
	}
	y += 8
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11" fill="#24292f">`+"\n", plotWidth, y, plotWidth, y)
	background := fmt.Sprintf(`<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", plotWidth, y)
	return slices.Concat([]byte(head), []byte(background), b.Bytes(), []byte("</svg>\n"))
}

// rect draws a rectangle with an optional tooltip.
func rect(b *bytes.Buffer, x, y, width, height int, colour, title string) {
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s">`, x, y, width, height, colour)
	if title != "" {
		b.WriteString("<title>")
		_ = xml.EscapeText(b, []byte(title)) // writing to a buffer does not fail
		b.WriteString("</title>")
	}
	b.WriteString("</rect>\n")
}

// text draws text that starts or ends at x.
func text(b *bytes.Buffer, x, y int, anchor, word string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s">`, x, y, anchor)
	_ = xml.EscapeText(b, []byte(word)) // writing to a buffer does not fail
	b.WriteString("</text>\n")
}
