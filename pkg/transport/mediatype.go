package transport

import (
	"strings"
)

// IsGRPC reports whether a media type is application/grpc or application/grpc+x.
func IsGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, GRPC)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}
