package adapt

import "time"

// maxPaths is the number of entries in [paths]. If two paths map to the same entry, the most recent
// path replaces the other.
const maxPaths = 256

// Constants for deciding whether most requests for a path are long.
const (
	mostlyLong   = 0.5  // a path is long if its share of long requests exceeds this value
	fewRequests  = 8    // minimum number of requests for the decision
	mostRequests = 1024 // number of requests that determine the share

	// A long request is recorded only if there was a short response for another path in the last
	// responding period. This period is long enough for a queue of many polls, which can delay the
	// next short request by several seconds.
	responding = 10 * time.Second

	// The share of long requests among the last few requests must also be above mostlyLong. A long
	// path becomes short again if the share among the last few hundred requests is at most
	// mostlyShort. Many short polls may end before the first long poll that started at the same time.
	mostlyShort  = 0.15
	recentWeight = 1.0 / 8   // weight of the last request in pathEntry.recent
	longWeight   = 1.0 / 128 // weight of the last request if the path is long
)

// paths records for up to maxPaths paths whether most requests are long. Without this record, each
// new poll would hold a slot until it becomes a long request.
//
// Requests to an overloaded application also become long, but they must still be counted. A path that
// had many short requests therefore becomes long only after many long requests.
type paths struct {
	entries [maxPaths]pathEntry

	// The last two paths with short responses, and the times of the last short responses.
	last, other     uint32
	lastAt, otherAt time.Time
}

type pathEntry struct {
	path   uint32  // hash of the path; 0 means that the entry is not used
	long   bool    // new requests are not counted
	number uint16  // number of requests, at most mostRequests
	share  float32 // share of long requests
	recent float32 // share of long requests among the last few requests (the last few hundred if long is true)
}

// isLong reports whether most requests of the path are long.
func (p *paths) isLong(path uint32) bool {
	e := &p.entries[path%maxPaths]
	return path != 0 && e.path == path && e.long
}

// noteLong records a long request. It ignores the request if there was no recent short response for
// another path, because then the application may not be responding at all.
func (p *paths) noteLong(now time.Time, path uint32) {
	after := now.Add(-responding)
	if p.last != path && p.lastAt.After(after) || p.other != path && p.otherAt.After(after) {
		p.note(path, 1)
	}
}

// noteShort records a request that ended and was not a long request.
func (p *paths) noteShort(now time.Time, path uint32) {
	if p.last != path {
		p.other, p.otherAt = p.last, p.lastAt
	}
	p.last, p.lastAt = path, now
	p.note(path, 0)
}

// note adds a request to the entry of its path. long is 1 for a long request, and 0 otherwise.
func (p *paths) note(path uint32, long float32) {
	if path == 0 {
		return
	}
	e := &p.entries[path%maxPaths]
	if e.path != path {
		*e = pathEntry{path: path}
	}
	e.number = min(e.number+1, mostRequests)
	e.share += (long - e.share) / float32(e.number)
	if e.long {
		e.recent += longWeight * (long - e.recent)
		e.long = e.recent > mostlyShort
		return
	}
	e.recent += recentWeight * (long - e.recent)
	e.long = e.number >= fewRequests && e.share > mostlyLong && e.recent > mostlyLong
}
