package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
)

// Colours. The background is white, so that a page may be dark.
const (
	ink      = "#24292f"
	faint    = "#57606a"
	grid     = "#d8dee4"
	shade    = "#eceff3"
	blue     = "#0550ae" // the adaptive limit
	paleBlue = "#80b3f5" // a candidate
	green    = "#1a7f37" // the best fixed limit
	red      = "#cf222e" // no limit
	orange   = "#bc6c00" // a limit that is too low
)

// A canvas is an SVG that is being drawn. Sizes are in pixels.
type canvas struct{ bytes.Buffer }

func newCanvas(width, height int) *canvas {
	var c canvas
	fmt.Fprintf(&c, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="11" fill="%s">`+"\n",
		width, height, ink)
	c.rect(0, 0, float64(width), float64(height), "#ffffff")
	return &c
}

// end returns the SVG.
func (c *canvas) end() []byte {
	c.WriteString("</svg>\n")
	return c.Bytes()
}

func (c *canvas) rect(x, y, width, height float64, fill string) {
	fmt.Fprintf(c, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s"/>`+"\n", n(x), n(y), n(width), n(height), fill)
}

// text writes at the base line y; more are attributes.
func (c *canvas) text(x, y float64, s string, more ...string) {
	fmt.Fprintf(c, `<text x="%s" y="%s"%s>`, n(x), n(y), joined(more))
	_ = xml.EscapeText(c, []byte(s))
	c.WriteString("</text>\n")
}

// line draws a path, which begins with M; more are attributes.
func (c *canvas) line(path, colour string, more ...string) {
	fmt.Fprintf(c, `<path d="%s" fill="none" stroke="%s"%s/>`+"\n", path, colour, joined(more))
}

// Attributes.
const (
	middle = `text-anchor="middle"`
	atEnd  = `text-anchor="end"`
	bold   = `font-weight="bold"`
	pale   = `fill="` + faint + `"`
	thick  = `stroke-width="1.8"`
	dashed = `stroke-dasharray="5 3"`
)

func joined(attributes []string) string {
	if len(attributes) == 0 {
		return ""
	}
	return " " + strings.Join(attributes, " ")
}

// n is a number with one digit at most behind the point: the tenth of a pixel.
func n(x float64) string {
	s := strconv.FormatFloat(x, 'f', 1, 64)
	return strings.TrimSuffix(s, ".0")
}

// A mark is the shape of a value; shapes differ for those who do not tell the colours
// apart.
type mark struct {
	name, colour string
	path         func(x, y float64) string
}

const markSize = 4.5 // half of it

var (
	adaptiveMark = mark{"adaptive limit", blue, func(x, y float64) string {
		return fmt.Sprintf("M%s %sa%s %[3]s 0 1 0 %s 0a%[3]s %[3]s 0 1 0 -%[4]s 0z", n(x-markSize), n(y), n(markSize), n(2*markSize))
	}}
	noneMark = mark{"no limit", red, func(x, y float64) string {
		return fmt.Sprintf("M%s %sl%s %[3]s l-%[3]s %[3]s l-%[3]s -%[3]sz", n(x), n(y-markSize-0.5), n(markSize+0.5))
	}}
	lowMark = mark{"fixed limit of 8", orange, func(x, y float64) string {
		return fmt.Sprintf("M%s %sl%s %s h-%sz", n(x), n(y-markSize), n(markSize), n(2*markSize-1), n(2*markSize))
	}}
)

func (c *canvas) mark(m mark, x, y float64) {
	fmt.Fprintf(c, `<path d="%s" fill="%s"/>`+"\n", m.path(x, y), m.colour)
}
