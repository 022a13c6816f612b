package stats

import (
	"encoding/binary"
	"math"
)

// Protobuf tags (number<<3 | wire type) of the fields in Knative's message Stat. Field 7, timestamp, is used only
// inside the autoscaler.
const (
	tagPodName            = 1<<3 | 2
	tagConcurrency        = 2<<3 | 1
	tagProxiedConcurrency = 3<<3 | 1
	tagRequests           = 4<<3 | 1
	tagProxiedRequests    = 5<<3 | 1
	tagUptime             = 6<<3 | 1
)

// appendStat appends the Knative message Stat for the last full second of r, as a proto3 message without a length
// prefix. The fields are in ascending order, and zero values are omitted. Before the end of the first full second, the
// message contains only the name of the pod, which must be valid UTF-8.
func appendStat(dst []byte, l Labels, r Report) []byte {
	if l.Pod != "" {
		dst = append(dst, tagPodName)
		dst = binary.AppendUvarint(dst, uint64(len(l.Pod)))
		dst = append(dst, l.Pod...)
	}
	dst = appendDouble(dst, tagConcurrency, r.Last.Concurrency)
	dst = appendDouble(dst, tagProxiedConcurrency, r.Last.ProxiedConcurrency)
	dst = appendDouble(dst, tagRequests, r.Last.Requests)
	dst = appendDouble(dst, tagProxiedRequests, r.Last.ProxiedRequests)
	return appendDouble(dst, tagUptime, r.Uptime.Seconds())
}

func appendDouble(dst []byte, tag byte, v float64) []byte {
	if v == 0 {
		return dst
	}
	return binary.LittleEndian.AppendUint64(append(dst, tag), math.Float64bits(v))
}
