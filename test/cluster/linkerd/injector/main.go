// Command injector is Linkerd's injector with the path of the chart templates, which a program
// that is built with -trimpath does not find in the module's directory charts.
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
