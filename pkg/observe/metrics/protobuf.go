package metrics

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A protoExposition contains the metrics of the user container in the protobuf format of Prometheus, which is
// a sequence of MetricFamily messages with length prefixes. In contrast to the text formats, this format supports
// native histograms. Only one series at a time is decoded, because decoded metrics need several times the
// memory of the body.
type protoExposition struct {
	families []protoFamily
}

// A protoFamily is an encoded MetricFamily message.
type protoFamily struct {
	message []byte
	names   []string // family name and sample names
}

// Field numbers of MetricFamily (metrics.proto of client_model).
const (
	familyName   protowire.Number = 1
	familyHelp   protowire.Number = 2
	familyType   protowire.Number = 3
	familyMetric protowire.Number = 4
	familyUnit   protowire.Number = 5
)

// readProtobuf parses body. It returns errGarbage if a message is invalid.
func readProtobuf(body []byte) (*protoExposition, error) {
	x := &protoExposition{}
	for len(body) > 0 {
		message, n := protowire.ConsumeBytes(body)
		if n < 0 {
			return nil, errGarbage
		}
		f, ok := readFamily(message)
		if !ok {
			return nil, errGarbage
		}
		x.families = append(x.families, f)
		body = body[n:]
	}
	return x, nil
}

// readFamily checks a MetricFamily message. ok is false if it is invalid.
func readFamily(message []byte) (f protoFamily, ok bool) {
	f.message = message
	name, distribution := "", false
	var series dto.Metric
	for rest := message; len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 || !validKind(field, kind) {
			return f, false
		}
		rest = rest[n:]
		if n = protowire.ConsumeFieldValue(field, kind, rest); n < 0 {
			return f, false
		}
		value := rest[:n]
		rest = rest[n:]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		switch field {
		case familyName:
			name = string(value)
		case familyType:
			kind, _ := protowire.ConsumeVarint(value)
			switch dto.MetricType(kind) {
			case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM, dto.MetricType_SUMMARY:
				distribution = true
			}
		case familyMetric:
			if proto.Unmarshal(value, &series) != nil || !validLabels(series.GetLabel()) || !validBuckets(series.GetHistogram()) {
				return f, false
			}
		case familyHelp, familyUnit:
			if !utf8.Valid(value) {
				return f, false
			}
		}
	}
	if first, rest := cutName(name, ":"); first == "" || rest != "" {
		return f, false
	}
	f.names = []string{name}
	if distribution {
		for _, suffix := range suffixes["histogram"] {
			f.names = append(f.names, name+suffix)
		}
	}
	return f, true
}

// validKind reports whether kind is the type of the field in a MetricFamily. Unknown fields may have any type.
func validKind(field protowire.Number, kind protowire.Type) bool {
	switch field {
	case familyName, familyHelp, familyMetric, familyUnit:
		return kind == protowire.BytesType
	case familyType:
		return kind == protowire.VarintType
	}
	return true
}

// validLabels reports whether Prometheus accepts labels without quotes around their names.
func validLabels(labels []*dto.LabelPair) bool {
	for i, l := range labels {
		name, rest := cutName(l.GetName(), "")
		repeated := slices.ContainsFunc(labels[:i], func(other *dto.LabelPair) bool { return other.GetName() == name })
		if name == "" || rest != "" || name == "__name__" || repeated || !utf8.ValidString(l.GetValue()) {
			return false
		}
	}
	return true
}

// validBuckets reports whether the spans of a native histogram contain as many buckets as there are values.
// Otherwise Prometheus rejects the scrape. A nil histogram is valid.
func validBuckets(h *dto.Histogram) bool {
	count := func(spans []*dto.BucketSpan) (n uint64) {
		for _, s := range spans {
			n += uint64(s.GetLength())
		}
		return n
	}
	matches := func(spans []*dto.BucketSpan, deltas []int64, counts []float64) bool {
		return count(spans) == uint64(max(len(deltas), len(counts)))
	}
	return matches(h.GetPositiveSpan(), h.GetPositiveDelta(), h.GetPositiveCount()) &&
		matches(h.GetNegativeSpan(), h.GetNegativeDelta(), h.GetNegativeCount())
}

// write writes the families in the protobuf format. It renames families whose names are in taken.
func (x *protoExposition) write(out io.Writer, _ bool, taken map[string]bool) error {
	all := map[string]bool{} // all names of the user container
	for _, f := range x.families {
		for _, name := range f.names {
			all[name] = true
		}
	}
	for _, f := range x.families {
		message := f.message
		if prefix := freePrefix(f.names, taken, all); prefix != "" {
			message = f.renamed(prefix + f.names[0])
		}
		if _, err := out.Write(protowire.AppendVarint(nil, uint64(len(message)))); err != nil {
			return err
		}
		if _, err := out.Write(message); err != nil {
			return err
		}
	}
	return nil
}

// renamed returns the message with name as the name of the family.
func (f *protoFamily) renamed(name string) []byte {
	// If a field that is not a list occurs several times, the last value is used (Protocol Buffers, "Encoding").
	b := slices.Clone(f.message)
	b = protowire.AppendTag(b, familyName, protowire.BytesType)
	return protowire.AppendString(b, name)
}

// freePrefix returns "" if taken contains none of the names. Otherwise it returns app_, repeated as often as
// necessary so that no name with the prefix is in taken or in all. all contains all names of the user container.
func freePrefix(names []string, taken, all map[string]bool) (prefix string) {
	const more = "app_"
	clash := func(name string) bool { return taken[prefix+name] || prefix != "" && all[prefix+name] }
	for slices.ContainsFunc(names, clash) {
		prefix += more
	}
	return prefix
}

// isProtobuf reports whether a content type is the format of a protoExposition.
func isProtobuf(media string, params map[string]string) bool {
	return media == "application/vnd.google.protobuf" && params["proto"] == "io.prometheus.client.MetricFamily" &&
		strings.EqualFold(params["encoding"], "delimited")
}
