package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/message"
	"github.com/queue-proxy/queue-proxy/pkg/observation"
)

// maxBody is the maximum length of the response in bytes. The client limits the header section.
const maxBody = 1 << 20

// Why requests the status from the given port of this host, and writes it to w as text or JSON. ready reports
// whether the pod is ready. If the pod is not ready, the output contains the reason.
func Why(ctx context.Context, client *http.Client, port int, asJSON bool, w io.Writer) (ready bool, err error) {
	s, err := get(ctx, client, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false, err
	}
	if asJSON {
		return s.Ready, message.JSON(w, s.report)
	}
	_, err = io.WriteString(w, message.Lines(s.text()))
	return s.Ready, err
}

// get returns the status with the result of a readiness check. address is a host and a port.
func get(ctx context.Context, client *http.Client, address string) (s snapshot, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path+"?ask", nil)
	if err != nil {
		return s, err
	}
	res, err := client.Do(r)
	if err != nil {
		if failed, is := errors.AsType[*url.Error](err); is {
			err = failed.Err // the address is part of this error
		}
		return s, fmt.Errorf("the sidecar does not respond: %w; run the command in the container of the sidecar, and set STATUS_PORT to the port of the status page", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return s, fmt.Errorf("the response from %s is %s, not the status of a sidecar; check STATUS_PORT", address, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxBody)).Decode(&s); err != nil {
		return s, fmt.Errorf("the response from %s is not the status of a sidecar; check STATUS_PORT: %w", address, err)
	}
	return s, nil
}

// reasons returns the number of failures of each reason as text, such as ": 20 queue-full, 1 app-garbage". The
// reasons are sorted by frequency.
func (t totals) reasons() string {
	words := slices.DeleteFunc(slices.Collect(maps.Keys(t)), func(word string) bool { return word == observation.OK.String() })
	slices.SortFunc(words, func(a, b string) int { return cmp.Or(cmp.Compare(t[b], t[a]), cmp.Compare(a, b)) })
	var b strings.Builder
	separator := ": "
	for _, word := range words {
		fmt.Fprintf(&b, "%s%d %s", separator, t[word], word)
		separator = ", "
	}
	return b.String()
}
