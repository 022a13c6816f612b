//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// closedLoop asks GET path on so many connections at once, each again as soon as
// it is answered, until the time is over and each was answered at least once. It
// returns how long the requests of each connection took, in their order. All
// connections are open before the first request, and until the last answer. An
// answer other than 200 is an error.
func closedLoop(address, path string, connections int, d time.Duration) ([][]time.Duration, error) {
	conns := make([]net.Conn, connections)
	for i := range conns {
		c, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(d + patience))
		conns[i] = c
	}
	request := "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nUser-Agent: bench\r\n\r\n"
	took := make([][]time.Duration, connections)
	errs := make([]error, connections)
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			took[i], errs[i] = askInTurn(c, request, end)
		})
	}
	all.Wait()
	return took, errors.Join(errs...)
}

// askInTurn is one connection of closedLoop.
func askInTurn(c net.Conn, request string, end time.Time) (took []time.Duration, err error) {
	r := bufio.NewReaderSize(c, 4<<10)
	for at := time.Now(); at.Before(end) || len(took) == 0; at = time.Now() {
		if _, err := io.WriteString(c, request); err != nil {
			return nil, err
		}
		if err := readAnswer(r); err != nil {
			return nil, err
		}
		took = append(took, time.Since(at))
	}
	return took, nil
}

// readAnswer reads a 200 with Content-Length.
func readAnswer(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("got %q, want HTTP/1.1 200", line)
	}
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= len("\r\n") {
			_, err := r.Discard(length)
			return err
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
}
