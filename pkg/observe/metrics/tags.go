package metrics

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

const (
	// maxTags is the maximum number of route tags that are used as label values (docs/promises.md 3.11).
	maxTags = 16

	// maxNamed is the maximum number of series with a named tag in a tagTable. Without this limit, the clients of
	// an app that responds with any requested status code could create 16 series for each combination of status,
	// method and protocol.
	maxNamed = 1024

	// maxMade is the maximum number of series in a tagTable. If this number is reached, a request that would
	// need a new series is counted in a series that combines several label values. The limit is necessary
	// because a series of histograms takes 6 KB, and there are tens of thousands of combinations of label values.
	maxMade = 2048
)

// Indexes of route tags. Named tags have the indexes firstNamed and above.
const (
	tagged     = int(observation.TagMalformed) // also used for names that are not label values
	firstNamed = int(observation.TagNamed)
	tagPlaces  = firstNamed + maxTags
)

// routeTags contains the first maxTags names of route tags. These names are used as label values. A
// routeTags is safe for concurrent use and has no lock.
type routeTags struct {
	known atomic.Pointer[map[string]int] // indexes of the names; the map is replaced and never modified
}

func newRouteTags() *routeTags {
	t := &routeTags{}
	t.known.Store(&map[string]int{})
	return t
}

// place returns the index of a request's tag. A tag with a new name gets a new index if there are
// fewer than maxTags names.
func (t *routeTags) place(h observation.Getter) int {
	kind, name := observation.TagOf(h)
	if kind != observation.TagNamed {
		return int(kind)
	}
	for {
		known := t.known.Load()
		if place, ok := (*known)[name]; ok {
			return place
		}
		if len(*known) == maxTags {
			return tagged
		}
		more := maps.Clone(*known)
		more[strings.Clone(name)] = firstNamed + len(*known) // the memory of the request will be reused
		t.known.CompareAndSwap(known, &more)
	}
}

// A tagTable is a table with the route tag as the first label. It contains a separate table for each tag,
// which is created for the first request with this tag.
type tagTable[T any] struct {
	tags  *routeTags
	words [firstNamed]string // label values of requests without a named tag
	child func(labelValues []string) *T
	dims  []dimension
	few   [][]int // for each dimension, replacement indexes that are used if there are too many series; nil means no replacement
	parts [tagPlaces]atomic.Pointer[table[T]]
	made  atomic.Int32 // number of series
	named atomic.Int32 // number of series with a named tag
}

// at returns the series for a tag index and the indexes of the other label values. If there are already maxNamed
// series with a named tag, at does not create another one, but uses the tag index tagged. If there are already
// maxMade series, it also replaces the other indexes as specified in few.
func (t *tagTable[T]) at(tag int, places ...int) *T {
	part := t.part(tag)
	if t.made.Load() < maxNamed || part.known(places...) != nil {
		return part.at(places...)
	}
	full := t.made.Load() >= maxMade
	if tag >= firstNamed && (full || t.named.Load() >= maxNamed) {
		part = t.part(tagged)
	}
	if full && part.known(places...) == nil {
		for i, few := range t.few {
			if few != nil {
				places[i] = few[places[i]]
			}
		}
	}
	return part.at(places...)
}

// part returns the table of a tag.
func (t *tagTable[T]) part(tag int) *table[T] {
	if part := t.parts[tag].Load(); part != nil {
		return part
	}
	word := ""
	if tag < firstNamed {
		word = t.words[tag]
	}
	for name, place := range *t.tags.known.Load() {
		if place == tag {
			word = name
		}
	}
	part := newTable(func(values []string) *T {
		t.made.Add(1)
		if tag >= firstNamed {
			t.named.Add(1)
		}
		return t.child(slices.Insert(values, 0, word))
	}, t.dims...)
	t.parts[tag].CompareAndSwap(nil, part)
	return t.parts[tag].Load()
}
