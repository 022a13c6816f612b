package metrics

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/queue-proxy/queue-proxy/pkg/header"
)

const (
	// maxTags is how many different names of route tags become label values
	// (docs/promises.md 3.11).
	maxTags = 16

	// maxNamed is how many series of each kind have such a label value. Without it a
	// client that knows an app which answers with any status could make 16 times as many
	// as there are statuses, methods and protocols.
	maxNamed = 1024

	// maxMade are made of each kind. Beyond it a new one counts as one of the few that
	// stand for many: a series of histograms takes 6 KB, and a closed list may have tens of
	// thousands.
	maxMade = 2048
)

// Places of route tags: first the kinds without a name, then the names.
const (
	tagged     = int(header.TagMalformed) // also of names that are not label values
	firstNamed = int(header.TagNamed)
	tagPlaces  = firstNamed + maxTags
)

// routeTags are the names that are label values: the first that requests came with. It is
// safe for concurrent use and takes no lock.
type routeTags struct {
	known atomic.Pointer[map[string]int] // places of the names; replaced, never written
}

func newRouteTags() *routeTags {
	t := &routeTags{}
	t.known.Store(&map[string]int{})
	return t
}

// place is the place of a request's tag. A new name gets one while there are any.
func (t *routeTags) place(h header.Getter) int {
	kind, name := header.TagOf(h)
	if kind != header.TagNamed {
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
		more[strings.Clone(name)] = firstNamed + len(*known) // the request's memory is used again
		t.known.CompareAndSwap(known, &more)
	}
}

// A tagTable is a table with a label for the route tag before the others. Each tag has a
// part of its own, made with the first request of that tag.
type tagTable[T any] struct {
	tags  *routeTags
	words [firstNamed]string // label values of tags that are none themselves
	child func(labelValues []string) *T
	dims  []dimension
	few   [][]int // of each dimension: the places that stand for others, by place; nil: each for itself
	parts [tagPlaces]atomic.Pointer[table[T]]
	made  atomic.Int32 // series
	named atomic.Int32 // those whose tag is a name
}

// at returns what stands at the place of a tag and the places of the other label
// values. Beyond maxNamed a name is counted as one that is no label value. Beyond maxMade
// the few places count.
func (t *tagTable[T]) at(tag int, places ...int) *T {
	part := t.part(tag)
	if t.made.Load() < maxNamed || part.has(places...) {
		return part.at(places...)
	}
	full := t.made.Load() >= maxMade
	if tag >= firstNamed && (full || t.named.Load() >= maxNamed) {
		part = t.part(tagged)
	}
	if full && !part.has(places...) {
		for i, few := range t.few {
			if few != nil {
				places[i] = few[places[i]]
			}
		}
	}
	return part.at(places...)
}

// part returns the series of a tag.
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
