package harness

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Variables that say what [AsKubectl] does.
const (
	kubectlAPI     = "HARNESS_KUBECTL_API"     // URL of the API server that the proxy passes requests to
	kubectlProgram = "HARNESS_KUBECTL_PROGRAM" // what exec runs in place of the program in the container
	kubectlRefuses = "HARNESS_KUBECTL_REFUSES" // what it says, to end with 1
)

// A Kubectl is a kubectl for tests: the test's own program, under that name in the PATH.
type Kubectl struct {
	API     string // URL of an API server
	Program string // that exec runs in place of the container's
	Refuses string // text with which every call fails; "" for none
}

// Install puts it into the PATH for the rest of the test. TestMain must call [AsKubectl].
func (k Kubectl) Install(t testing.TB) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "kubectl")); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"GORACE": "atexit_sleep_ms=0", // else each call ends a second later
		"PATH":   dir + string(os.PathListSeparator) + os.Getenv("PATH"), kubectlAPI: k.API, kubectlProgram: k.Program, kubectlRefuses: k.Refuses,
	} {
		t.Setenv(name, value)
	}
}

// AsKubectl plays kubectl and ends the process, if it was called by that name.
func AsKubectl() {
	if filepath.Base(os.Args[0]) == "kubectl" {
		os.Exit(playKubectl(os.Args[1:]))
	}
}

func playKubectl(args []string) int {
	if text := os.Getenv(kubectlRefuses); text != "" {
		fmt.Fprintln(os.Stderr, text)
		return 1
	}
	switch args[0] {
	case "config":
		fmt.Print("of-the-context")
	case "get":
		fmt.Println("web-1\nweb-2")
	case "exec":
		fmt.Fprintln(os.Stderr, strings.Join(args, " "))
		_, rest, _ := strings.Cut(strings.Join(args, " "), " -- ")
		cmd := exec.Command(os.Getenv(kubectlProgram), strings.Fields(rest)[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		_ = cmd.Run()
		return cmd.ProcessState.ExitCode()
	case "proxy":
		return playProxy(args[1:])
	}
	return 0
}

// playProxy passes requests to the API server until it is ended.
func playProxy(args []string) int {
	socket := ""
	for _, a := range args {
		if path, ok := strings.CutPrefix(a, "--unix-socket="); ok {
			socket = path
		}
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	api, err := url.Parse(os.Getenv(kubectlAPI))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	proxy := httputil.NewSingleHostReverseProxy(api)
	proxy.FlushInterval = -1
	go func() { _ = http.Serve(l, proxy) }()
	fmt.Println("Starting to serve on", socket)
	<-end
	return 0
}
