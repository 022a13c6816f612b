package bound_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/pkg/observation/bound"
	"github.com/queue-proxy/queue-proxy/test/harness"
)

// go test ./pkg/observation/bound -update writes the generated parts of docs/bounds.md.
var update = flag.Bool("update", false, "rewrite the generated parts of docs/bounds.md")

const (
	root = "../../../"
	page = root + "docs/bounds.md"

	// minMargin is the minimum ratio of a bound to the use of the heaviest legitimate peer. A smaller
	// ratio needs a reason.
	minMargin = 10
)

// A proof describes a bound, the attack that it stops, and the heaviest legitimate peer.
type proof struct {
	limit  string // value of the bound with the default settings
	attack string // the attack that the bound stops
	peer   string // the heaviest known legitimate peer
	margin int    // ratio of the bound to the use of this peer; 0 means that the page shows no margin
	reason string // reason for a margin below minMargin; "" for other margins

	attackTest, peerTest test
}

// A test identifies a test function by its file and its name.
type test struct{ file, name string }

func (t test) String() string {
	if t.name == "" {
		return "none"
	}
	return fmt.Sprintf("`%s:%s`", t.file, t.name)
}

// Files of the tests.
const (
	http1Tests     = "pkg/transport/http1/bound_test.go"
	upstreamTests  = "pkg/transport/http1/http1client/bound_test.go"
	recordTests    = "pkg/transport/netconn/record_test.go"
	linkTests      = "pkg/transport/netconn/bound_test.go"
	connlimitTests = "pkg/transport/netconn/connlimit_bound_test.go"
	portTests      = "pkg/fair/port_bound_test.go"
	h2Tests        = "pkg/transport/http2/http2conn/bounds_test.go"
	h2ClientTests  = "pkg/transport/http2/http2conn/client_bounds_test.go"
	h2AppTests     = "pkg/transport/http2/http2conn/app_bounds_test.go"
)

var proofs = [bound.NumNames]proof{
	bound.ControlFrames: {
		limit:      "10 000 frames without headers or content, plus 1000 per second and 100 for each other frame",
		attack:     "floods of PING, SETTINGS, PRIORITY, empty frames (CVE-2019-9518)",
		peer:       "grpc-go: 3 control frames for each message",
		margin:     33,
		attackTest: test{h2Tests, "TestControlFramesForLittleContentCloseConnection"},
		peerTest:   test{h2Tests, "TestControlFramesForContentPass"},
	},
	bound.UnreadReplies: {
		limit:      "64 KiB of replies to PING and SETTINGS",
		attack:     "PING and SETTINGS whose replies are not read (CVE-2019-9512, CVE-2019-9515)",
		peer:       "grpc-go: 20 PING frames (340 bytes)",
		margin:     190,
		attackTest: test{h2ClientTests, "TestUnreadRepliesCloseConnection"},
		peerTest:   test{h2ClientTests, "TestUnreadPingsReceiveReplies"},
	},
	bound.HeaderBlock: {
		limit:      "2 MiB + 16 KiB (2 x `MAX_HEADER_BYTES`)",
		attack:     "a flood of CONTINUATION frames (CVE-2024-27316)",
		peer:       "a Kerberos token of 64 KiB",
		margin:     32,
		attackTest: test{h2ClientTests, "TestLongHeaderBlockClosesConnection"},
		peerTest:   test{h2ClientTests, "TestKerberosHeaderBlockIsServed"},
	},
	bound.FrameTimeout: {
		limit:      "60 s (`HEADER_TIMEOUT`)",
		attack:     "frames that never end, on many connections",
		peer:       "a header block of 64 KiB at 100 kbit/s (5 s)",
		margin:     11,
		attackTest: test{h2ClientTests, "TestIncompleteFrameTimesOut"},
		peerTest:   test{h2ClientTests, "TestSplitHeaderBlockIsServed"},
	},
	bound.ConcurrentStreams: {
		limit:      "250, advertised in SETTINGS",
		attack:     "many streams on one connection",
		peer:       "h2load with 250 streams: clients read the limit",
		reason:     "Clients read the limit before they open many streams.",
		attackTest: test{"test/conformance/abuse_h2_test.go", "TestHTTP2FloodsStayWithinLimits"},
		peerTest:   test{h2Tests, "TestEndedStreamsDoNotCountAgainstLimit"},
	},
	bound.SendTimeout: {
		limit:      "300 s for each piece of 64 KiB (`SEND_TIMEOUT`)",
		attack:     "clients that do not read, and hold slots and memory",
		peer:       "an outage of a mobile network (30 s)",
		margin:     10,
		attackTest: test{http1Tests, "TestUnreadResponseTimesOut"},
		peerTest:   test{http1Tests, "TestSlowReaderReceivesResponse"},
	},
	bound.SilentConnection: {
		limit:      "60 s (`HEADER_TIMEOUT`)",
		attack:     "many connections that send nothing",
		peer:       "a browser that opens connections in advance",
		reason:     "No request is in progress.",
		attackTest: test{http1Tests, "TestSilentConnectionTimesOut"},
		peerTest:   test{http1Tests, "TestIdleNewConnectionServesRequest"},
	},
	bound.HeaderTimeout: {
		limit:      "60 s (`HEADER_TIMEOUT`)",
		attack:     "Slowloris: header sections that never end",
		peer:       "a header section of 64 KiB at 100 kbit/s (5 s)",
		margin:     11,
		attackTest: test{http1Tests, "TestIncompleteHeaderTimesOut"},
		peerTest:   test{http1Tests, "TestSplitHeaderReturns200"},
	},
	bound.HeaderSection: {
		limit:      "1 MiB (`MAX_HEADER_BYTES`), 1000 fields, 64 options and 1 KiB of `Connection`, 4 KiB of `Trailer`",
		attack:     "header sections that hold memory, lists that cost time",
		peer:       "a Kerberos token of 64 KiB, 100 fields, 5 connection options",
		margin:     10,
		attackTest: test{http1Tests, "TestLargeHeaderReturnsError"},
		peerTest:   test{http1Tests, "TestKerberosHeaderReturns200"},
	},
	bound.BodyTimeout: {
		limit:      "60 s without a byte (`BODY_TIMEOUT`)",
		attack:     "requests that hold a slot without a body",
		peer:       "an upload in a mobile network (5 s)",
		margin:     12,
		attackTest: test{http1Tests, "TestIncompleteBodyReturns408"},
		peerTest:   test{http1Tests, "TestSplitBodyReturns200"},
	},
	bound.BodySize: {
		limit:      "none (`MAX_BODY_BYTES`)",
		attack:     "bodies that fill the memory of the user container",
		peer:       "the largest upload of the application",
		reason:     "There is no default.",
		attackTest: test{http1Tests, "TestLargeBodyReturns413"},
		peerTest:   test{http1Tests, "TestMaxBodyReturns200"},
	},
	bound.ChunkExtensions: {
		limit:      "2 KiB more than the content",
		attack:     "chunk extensions that cost time and carry nothing (CVE-2023-39326)",
		peer:       "a client that signs each chunk (85 bytes)",
		margin:     24,
		attackTest: test{http1Tests, "TestLongChunkExtensionReturns400"},
		peerTest:   test{http1Tests, "TestSignedChunksReturn200"},
	},
	bound.TrailerSection: {
		limit:      "4 KiB",
		attack:     "trailers that hold memory",
		peer:       "a checksum and a signature (160 bytes)",
		margin:     25,
		attackTest: test{http1Tests, "TestLargeTrailerReturns400"},
		peerTest:   test{http1Tests, "TestChecksumTrailerReturns200"},
	},
	bound.TunnelTimeout: {
		limit:      "30 s without a byte after one direction is closed",
		attack:     "half-closed tunnels that hold slots",
		peer:       "the output of a command after its input, as in `docker exec`",
		reason:     "A command can be silent for any length of time, but half-closed tunnels occupy slots.",
		attackTest: test{upstreamTests, "TestIdleHalfClosedTunnelTimesOut"},
		peerTest:   test{upstreamTests, "TestActiveHalfClosedTunnelStaysOpen"},
	},
	bound.MaxConnections: {
		limit:      "`MAX_CONNECTIONS`, or [a part of the descriptors and the memory](reliability.md#file-descriptors)",
		attack:     "connections that fill memory and file descriptors",
		peer:       "500 connections in a container of 64 MiB",
		reason:     "Each connection with a request needs memory and two descriptors.",
		attackTest: test{connlimitTests, "TestMaxConnectionsClosesIdleConnections"},
		peerTest:   test{connlimitTests, "TestMaxConnectionsKeepsIdleConnections"},
	},
	bound.Memory: {
		limit:      "half of the memory limit of the Go runtime, or 1 GiB",
		attack:     "requests that hold memory (CVE-2026-47774, CVE-2026-49975)",
		peer:       "1000 requests that wait (16 MB), in a container of 64 MiB",
		reason:     "Requests are rejected before a connection is closed.",
		attackTest: test{"pkg/transport/netconn/memory_test.go", "TestExhaustedBudgetClosesLargestConnection"},
		peerTest:   test{"test/conformance/abuse_memory_test.go", "TestManyWaitingRequestsAreServed"},
	},
	bound.TLSHandshakeTimeout: {
		limit:      "10 s of waiting for the client, at most `HEADER_TIMEOUT`",
		attack:     "handshakes that never end, on many connections",
		peer:       "two round trips by satellite (1 s)",
		margin:     10,
		attackTest: test{linkTests, "TestIncompleteHandshakeTimesOut"},
		peerTest:   test{linkTests, "TestSplitHandshakeSucceeds"},
	},
	bound.TLSHandshakeStall: {
		limit:      "1 to 10 s for the next messages, if handshakes are queued",
		attack:     "handshakes that stop and keep others waiting",
		peer:       "1500 clients that share a busy processor (3 s)",
		margin:     3,
		reason:     "The timeout is halved for each closed handshake, and doubled for each completed one. A client can connect again.",
		attackTest: test{linkTests, "TestStalledHandshakeIsClosed"},
		peerTest:   test{linkTests, "TestConcurrentHandshakesSucceed"},
	},
	bound.TLSHandshakeQueue: {
		limit:      "20 000 queued handshakes; the time in the queue is not limited",
		attack:     "more handshakes than the processor can complete",
		peer:       "2000 connections at the same time",
		margin:     10,
		attackTest: test{linkTests, "TestFullHandshakeQueueClosesConnection"},
		peerTest:   test{linkTests, "TestConcurrentHandshakesSucceed"},
	},
	bound.TLSHandshakeSize: {
		limit:      "64 KiB (128 KiB with client certificates), or 8 KiB (32 KiB) while long handshakes use 1 MiB in all",
		attack:     "long handshakes that hold memory",
		peer:       "a key share of 1.8 KiB, or a certificate chain of 10 KiB",
		margin:     12,
		attackTest: test{linkTests, "TestLongHandshakeIsClosed"},
		peerTest:   test{linkTests, "TestBrowserHandshakeSucceeds"},
	},
	bound.TLSRecordTimeout: {
		limit:      "60 s of waiting for the rest of a record, at most `HEADER_TIMEOUT`",
		attack:     "TLS records that never end",
		peer:       "an upload in records of 16 KiB at 100 kbit/s (1.4 s)",
		margin:     40,
		attackTest: test{recordTests, "TestIncompleteRecordTimesOut"},
		peerTest:   test{recordTests, "TestSlowRecordsSucceed"},
	},
	bound.TLSNoContent: {
		limit:      "20 KiB without a byte of content",
		attack:     "TLS messages that never end or carry nothing",
		peer:       "one KeyUpdate between two records",
		margin:     16,
		attackTest: test{linkTests, "TestEndlessTLSMessageClosesConnection"},
		peerTest:   test{linkTests, "TestKeyUpdatesBetweenContentSucceed"},
	},
	bound.TLSUnreadReplies: {
		limit:      "66 KiB of replies to KeyUpdate",
		attack:     "KeyUpdate messages whose replies are not read",
		peer:       "one KeyUpdate (27 bytes)",
		margin:     2500,
		attackTest: test{linkTests, "TestUnreadKeyUpdatesCloseConnection"},
		peerTest:   test{linkTests, "TestReadKeyUpdatesSucceed"},
	},
	bound.PortConnections: {
		limit:      "256 for each port",
		attack:     "connections that keep scrapers and the autoscaler out",
		peer:       "two Prometheus servers and 20 preStop hooks",
		margin:     11,
		attackTest: test{portTests, "TestMaxConnectionsClosesSilentConnection"},
		peerTest:   test{portTests, "TestScrapersKeepConnections"},
	},
	bound.PortHeaderSection: {
		limit:      "100 lines, and 256 KiB of all incomplete header sections",
		attack:     "header sections that never end and hold memory",
		peer:       "Prometheus: 9 lines in 500 bytes",
		margin:     11,
		attackTest: test{portTests, "TestIncompleteHeadersAreClosed"},
		peerTest:   test{portTests, "TestScraperHeaderReturns200"},
	},
	bound.PortHandshake: {
		limit:      "32 KiB and 10 s; 64 incomplete handshakes",
		attack:     "handshakes that are long or never end",
		peer:       "a scraper with a certificate chain of 10 KiB",
		margin:     3,
		reason:     "64 handshakes of this size hold 8 MiB.",
		attackTest: test{portTests, "TestIncompleteHandshakeIsClosed"},
		peerTest:   test{portTests, "TestScraperHandshakeSucceeds"},
	},
	bound.AppControlFrames: {
		limit:      "10 times the bound of a client",
		attack:     "a user container that floods the sidecar",
		peer:       "a grpc-go server: 3 control frames for each message",
		margin:     330,
		attackTest: test{h2AppTests, "TestAppControlFramesForLittleContentCloseConnection"},
		peerTest:   test{h2AppTests, "TestAppControlFramesForContentPass"},
	},
	bound.AppUnreadReplies: {
		limit:      "as `h2-unread-replies`",
		attack:     "PING and SETTINGS whose replies are not read",
		peer:       "a grpc-go server: 20 PING frames (340 bytes)",
		margin:     190,
		attackTest: test{h2AppTests, "TestUnreadRepliesToAppCloseConnection"},
		peerTest:   test{h2AppTests, "TestUnreadPingsOfAppReceiveReplies"},
	},
	bound.AppHeaderBlock: {
		limit:      "as `h2-header-block`",
		attack:     "a response header block that never ends",
		peer:       "16 KiB, which clients such as Node.js accept",
		margin:     129,
		attackTest: test{h2AppTests, "TestLongAppHeaderBlockClosesConnection"},
		peerTest:   test{h2AppTests, "TestLongAppHeaderIsForwarded"},
	},
	bound.AppInformational: {
		limit:      "100, and one more each second",
		attack:     "informational responses without end",
		peer:       "102 (Processing) every 20 s (RFC 2518 section 10.1)",
		margin:     20,
		attackTest: test{upstreamTests, "TestManyInformationalResponsesReturnError"},
		peerTest:   test{upstreamTests, "TestSlowInformationalResponsesAreForwarded"},
	},
	bound.AppHeaderSection: {
		limit:      "1 MiB (`MAX_HEADER_BYTES`), 1000 fields, 1 KiB of `Connection`, 16 KiB of `Trailer`",
		attack:     "a response header section that never ends",
		peer:       "16 KiB, which clients such as Node.js accept, and 100 fields",
		margin:     10,
		attackTest: test{upstreamTests, "TestLargeResponseHeaderReturnsError"},
		peerTest:   test{upstreamTests, "TestUsualResponseHeaderIsForwarded"},
	},
	bound.AppChunkExtensions: {
		limit:      "2 KiB more than the content, and 16 bytes for each chunk",
		attack:     "chunk extensions that cost time and carry nothing",
		peer:       "an application that signs each chunk (85 bytes)",
		margin:     24,
		attackTest: test{upstreamTests, "TestLongResponseChunkExtensionReturnsError"},
		peerTest:   test{upstreamTests, "TestSignedResponseChunksAreForwarded"},
	},
	bound.AppTrailerSection: {
		limit:      "16 KiB",
		attack:     "trailers that hold memory",
		peer:       "`Server-Timing` with 64 steps (1 KiB)",
		margin:     16,
		attackTest: test{upstreamTests, "TestLargeResponseTrailerReturnsError"},
		peerTest:   test{upstreamTests, "TestTimingTrailerIsForwarded"},
	},
	bound.AppHeadBody: {
		limit:      "no content in a response to HEAD",
		attack:     "content that would be read as the next response",
		peer:       "an application that follows RFC 9110 section 9.3.2",
		reason:     "The request succeeds, but the connection to the user container is not reused.",
		attackTest: test{upstreamTests, "TestHeadResponseWithBodyClosesConnection"},
		peerTest:   test{upstreamTests, "TestHeadResponseReusesConnection"},
	},
}

func TestBoundsPageIsUpToDate(t *testing.T) {
	for name, table := range map[string]string{"bounds": boundTable(), "errors": errorTable()} {
		harness.Document(t, page, name, "\n"+table+"\n", *update)
	}
}

func TestClientErrorsDescribeCause(t *testing.T) {
	for name, want := range map[bound.Name]string{
		bound.MalformedRequest:  "expectation", // RFC 9110 section 10.1.1, status 417
		bound.TLSNoCertificate:  "QUEUE_PROXY_TLS_CLIENT_CA",
		bound.TLSBadCertificate: "QUEUE_PROXY_TLS_CLIENT_CA",
	} {
		if !strings.Contains(name.Text(), want) {
			t.Errorf("%v: got text %q, want %s in it", name, name.Text(), want)
		}
	}
}

func TestNarrowMarginsHaveReasons(t *testing.T) {
	for name, p := range proofs {
		if p.limit == "" || p.attack == "" || p.peer == "" {
			t.Errorf("%v: got limit %q, attack %q, peer %q, want all of them", bound.Name(name), p.limit, p.attack, p.peer)
		}
		if narrow := p.margin < minMargin; narrow != (p.reason != "") {
			t.Errorf("%v: got margin %d and reason %q, want a reason only for a margin below %d", bound.Name(name), p.margin, p.reason, minMargin)
		}
	}
}

func TestBoundsHaveTwoTests(t *testing.T) {
	for i, p := range proofs {
		name := bound.Name(i)
		for _, one := range []test{p.attackTest, p.peerTest} {
			if one.name == "" {
				t.Errorf("%v: got attack %v and peer %v, want two tests", name, p.attackTest, p.peerTest)
				continue
			}
			code, err := os.ReadFile(root + one.file)
			harness.NoError(t, err, name)
			if !strings.Contains(string(code), "\nfunc "+one.name+"(") {
				t.Errorf("%v: test %s not found in %s", name, one.name, one.file)
			}
		}
	}
}

// boundTable returns a Markdown table of the bounds. The column "closes" is empty for a connection.
func boundTable() string {
	var b strings.Builder
	b.WriteString("| bound | closes | limit | margin |\n|---|---|---|---|\n")
	for i, p := range proofs {
		margin := ""
		if p.margin > 0 {
			margin = fmt.Sprintf("%d x", p.margin)
		}
		name, closes := bound.Name(i), ""
		if name.Closes() != bound.Connection {
			closes = string(name.Closes())
		}
		row := fmt.Sprintf("| `%v` | %s | %s | %s |\n", name, closes, p.limit, margin)
		b.WriteString(strings.ReplaceAll(row, "  |", " |"))
	}
	return b.String()
}

// errorTable returns a Markdown table of the client errors.
func errorTable() string {
	var b strings.Builder
	b.WriteString("| error | closes | cause |\n|---|---|---|\n")
	for name := bound.NumNames; name < bound.NumEvents; name++ {
		cause, _, _ := strings.Cut(name.Text(), ". ")
		fmt.Fprintf(&b, "| `%v` | %s | %s |\n", name, name.Closes(), cause)
	}
	return b.String()
}
