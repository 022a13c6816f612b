// Command injector is Linkerd's own injector with one thing set: a program that is built with
// -trimpath does not find the templates of its patch, which lie in the module's folder charts.
package main

import (
	"net/http"
	"os"

	proxyinjector "github.com/linkerd/linkerd2/controller/cmd/proxy-injector"
	"github.com/linkerd/linkerd2/pkg/charts/static"
)

func main() {
	static.Templates = http.Dir(os.Getenv("LINKERD_CHARTS"))
	proxyinjector.Main(os.Args[1:])
}
