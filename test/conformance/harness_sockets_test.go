package conformance

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// A socket is an entry of the kernel's table of TCP sockets.
type socket struct {
	local, remote uint16 // port numbers
	state         uint8  // state as in /proc/net/tcp: 1 is ESTABLISHED, 8 is CLOSE_WAIT
	received      uint32 // number of unread bytes; for listening sockets, number of connections that are not accepted yet
}

// sockets returns the TCP sockets of this host with the given ports, except for those in
// TIME_WAIT. Port 0 matches any port. The kernel filters the sockets (sock_diag(7)), because
// /proc/net/tcp contains tens of thousands of connections of other tests.
func sockets(local, remote uint16) (all []socket, err error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	answer := make([]byte, 1<<16)
	for _, family := range []byte{syscall.AF_INET, syscall.AF_INET6} {
		const (
			length   = syscall.NLMSG_HDRLEN + 56 // the message contains a header and an inet_diag_req_v2
			byFamily = 20                        // SOCK_DIAG_BY_FAMILY
			states   = 0xfff &^ (1 << 6)         // all states except TIME_WAIT, which has the number 6
		)
		ask := binary.NativeEndian.AppendUint32(nil, length)
		ask = binary.NativeEndian.AppendUint16(ask, byFamily)
		ask = binary.NativeEndian.AppendUint16(ask, syscall.NLM_F_REQUEST|syscall.NLM_F_DUMP)
		ask = append(ask, make([]byte, 8)...) // append the sequence number and the port ID
		ask = append(ask, family, syscall.IPPROTO_TCP, 0, 0)
		ask = binary.NativeEndian.AppendUint32(ask, states)
		ask = binary.BigEndian.AppendUint16(ask, local)
		ask = binary.BigEndian.AppendUint16(ask, remote)
		ask = append(ask, make([]byte, length-len(ask))...) // match any address
		if err := syscall.Sendto(fd, ask, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
			return nil, err
		}
		for done := false; !done; {
			n, _, err := syscall.Recvfrom(fd, answer, 0)
			if err != nil {
				return nil, err
			}
			messages, err := syscall.ParseNetlinkMessage(answer[:n])
			if err != nil {
				return nil, err
			}
			for _, m := range messages {
				switch b := m.Data; {
				case m.Header.Type == syscall.NLMSG_DONE:
					done = true
				case m.Header.Type != byFamily || len(b) < 64:
					return nil, fmt.Errorf("got netlink message %+v, want SOCK_DIAG_BY_FAMILY", m)
				default: // the message contains an inet_diag_msg
					all = append(all, socket{binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:]), b[1], binary.NativeEndian.Uint32(b[56:])})
				}
			}
		}
	}
	return all, nil
}

// awaitInputRead waits until the sidecar has accepted all connections to the serving port and
// has read all input from the kernel.
func awaitInputRead(t *testing.T, p *proxy) {
	t.Helper()
	p.poll("the sidecar has read all input", func() error {
		all, err := sockets(uint16(p.port.serving), 0)
		for _, s := range all {
			if s.received > 0 {
				return fmt.Errorf("got unread data on %+v", s)
			}
		}
		return err
	})
}

// awaitAppConnectionsClosed waits until the connections to the user container have received a
// FIN (HTTP/1.1, checked by the sidecar before the next use) or are closed (HTTP/2). After two
// seconds, HTTP/1.1 connections are also allowed for h2c, because the response to protocol
// detection may be late if the user container is busy.
func (p *proxy) awaitAppConnectionsClosed(protocol string) {
	p.t.Helper()
	began := time.Now()
	p.poll("the connections to the user container have ended", func() error {
		all, err := sockets(0, uint16(p.port.user))
		for _, s := range all {
			if s.state == 1 || s.state == 8 && protocol == "h2c" && time.Since(began) < 2*time.Second {
				return fmt.Errorf("%+v is open", s)
			}
		}
		return err
	})
}
