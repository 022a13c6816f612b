package conformance

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// A socket is what the kernel tells of one.
type socket struct {
	local, remote uint16 // port
	state         uint8  // as in /proc/net/tcp: 1 is ESTABLISHED, 8 CLOSE_WAIT
	received      uint32 // bytes that nobody has read; of one that listens: connections not yet accepted
}

// sockets returns all of this host with these ports, of which 0 is any, but for
// those in TIME_WAIT. It asks by netlink (sock_diag(7)), where the kernel chooses:
// /proc/net/tcp would have the tens of thousands of connections of other tests.
func sockets(local, remote uint16) (all []socket, err error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	answer := make([]byte, 1<<16)
	for _, family := range []byte{syscall.AF_INET, syscall.AF_INET6} {
		const (
			length   = syscall.NLMSG_HDRLEN + 56 // with an inet_diag_req_v2
			byFamily = 20                        // SOCK_DIAG_BY_FAMILY
			states   = 0xfff &^ (1 << 6)         // TIME_WAIT is 6
		)
		ask := binary.NativeEndian.AppendUint32(nil, length)
		ask = binary.NativeEndian.AppendUint16(ask, byFamily)
		ask = binary.NativeEndian.AppendUint16(ask, syscall.NLM_F_REQUEST|syscall.NLM_F_DUMP)
		ask = append(ask, make([]byte, 8)...) // number, sender
		ask = append(ask, family, syscall.IPPROTO_TCP, 0, 0)
		ask = binary.NativeEndian.AppendUint32(ask, states)
		ask = binary.BigEndian.AppendUint16(ask, local)
		ask = binary.BigEndian.AppendUint16(ask, remote)
		ask = append(ask, make([]byte, length-len(ask))...) // any address
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
					return nil, fmt.Errorf("netlink says %+v", m)
				default: // an inet_diag_msg
					all = append(all, socket{binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:]), b[1], binary.NativeEndian.Uint32(b[56:])})
				}
			}
		}
	}
	return all, nil
}

// settled returns when the sidecar has accepted every connection to its serving
// port and has read every byte that came on them: when the kernel holds nothing
// for it any more.
func settled(t *testing.T, p *proxy) {
	t.Helper()
	p.poll("the sidecar has read what was sent", func() error {
		all, err := sockets(uint16(p.port.serving), 0)
		for _, s := range all {
			if s.received > 0 {
				return fmt.Errorf("%+v has not been read", s)
			}
		}
		return err
	})
}

// forgotten returns when the sidecar has had a chance to see that its connections
// to the user container have ended: those of HTTP/1.1 have their FIN, of which it
// takes notice before it uses them, and those of HTTP/2 are closed. A user container that
// was too busy to say that it speaks HTTP/2 has one of HTTP/1.1 too: it ends nothing.
func (p *proxy) forgotten(protocol string) {
	p.t.Helper()
	began := time.Now()
	p.poll("the sidecar's connections have ended", func() error {
		all, err := sockets(0, uint16(p.port.user))
		for _, s := range all {
			if s.state == 1 || s.state == 8 && protocol == "h2c" && time.Since(began) < 2*time.Second {
				return fmt.Errorf("%+v is open", s)
			}
		}
		return err
	})
}
