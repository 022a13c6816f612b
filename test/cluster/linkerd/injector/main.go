// Command injector runs Linkerd's injector. It sets the path of the chart templates, because a
// program that is built with -trimpath does not find them in the module's directory charts.
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
