package export

import "time"

// reportEvery is how often failures are reported at most: a collector that refuses every
// other export must not fill the log.
const reportEvery = 10 * time.Second

// An Outcome is how exports ended so far.
type Outcome struct {
	reported   bool      // a failure since the last success
	reportedAt time.Time // the last failure that was; zero: none
}

// IsNews notes how an export ended, and reports whether that is to be reported.
func (o *Outcome) IsNews(err error) bool {
	switch {
	case err == nil:
		o.reported = false
		return false
	case o.reported, !o.reportedAt.IsZero() && time.Since(o.reportedAt) < reportEvery:
		return false
	}
	o.reported, o.reportedAt = true, time.Now()
	return true
}
