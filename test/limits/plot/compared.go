package main

import (
	"fmt"
	"math"

	"github.com/queue-proxy/queue-proxy/test/limits/simulation"
)

// Limits compared: a row for each app, a column for each measure. Sizes are in pixels.
const (
	nameWidth   = 110
	columnWidth = 250
	columnGap   = 40
	rowHeight   = 30
	apart       = 8 // marks of a row
	headHeight  = 66
	footHeight  = 26
)

// A column is a measure, as how many times that of the best fixed limit.
type column struct {
	title string
	value func(*simulation.Result) float64
	ticks []float64 // those at its ends included
}

// columns are what is compared. The scales are logarithmic.
var columns = []column{
	{"throughput", func(r *simulation.Result) float64 { return r.Throughput }, []float64{0.5, 0.6, 0.7, 0.8, 0.9, 1}},
	{"99th percentile in the app", func(r *simulation.Result) float64 { return r.AppP99 }, []float64{0.5, 1, 2, 4, 8, 16}},
	{"and with the wait in line", func(r *simulation.Result) float64 { return r.P99 }, []float64{0.5, 1, 2, 4, 8, 16}},
}

// compared draws what each limit did beside the best fixed one.
func compared(all []outcome) []byte {
	c := newCanvas(nameWidth+len(columns)*columnWidth, headHeight+len(all)*rowHeight+footHeight)
	x := 10.0
	for _, m := range []mark{adaptiveMark, noneMark, lowMark} {
		c.mark(m, x+5, 18)
		c.text(x+15, 22, m.name)
		x += 40 + 5.5*float64(len(m.name))
	}
	c.line(fmt.Sprintf("M%s 18h24", n(x)), green, dashed, thick)
	c.text(x+30, 22, "1 is the best fixed limit")
	for i, o := range all {
		y := rowY(i)
		if i%2 == 0 {
			c.rect(0, y-rowHeight/2, nameWidth+float64(len(columns))*columnWidth, rowHeight, shade)
		}
		c.text(10, y+4, o.app.Name, bold)
	}
	for i, column := range columns {
		column.draw(c, nameWidth+float64(i)*columnWidth, all)
	}
	return c.end()
}

// rowY is the middle of a row.
func rowY(i int) float64 { return headHeight + (float64(i)+0.5)*rowHeight }

func (m *column) draw(c *canvas, left float64, all []outcome) {
	least, most := m.ticks[0], m.ticks[len(m.ticks)-1]
	x := func(v float64) float64 {
		return left + columnGap/2 + (columnWidth-columnGap)*math.Log(v/least)/math.Log(most/least)
	}
	c.text((x(least)+x(most))/2, headHeight-18, m.title, middle, bold)
	end := headHeight + float64(len(all))*rowHeight
	for _, v := range m.ticks {
		colour, more := grid, []string(nil)
		if v == 1 {
			colour, more = green, []string{dashed, thick}
		}
		c.line(fmt.Sprintf("M%s %dV%s", n(x(v)), headHeight-4, n(end+4)), colour, more...)
		c.text(x(v), end+17, fmt.Sprintf("%g", v), middle, pale)
	}
	for i, o := range all {
		for _, of := range []struct {
			mark   mark
			result *simulation.Result
			below  float64
		}{{lowMark, &o.low, apart}, {noneMark, &o.none, -apart}, {adaptiveMark, &o.adaptive, 0}} {
			v := m.value(of.result) / m.value(&o.best)
			c.mark(of.mark, x(min(max(v, least), most)), rowY(i)+of.below)
		}
	}
}
