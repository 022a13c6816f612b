//go:build cluster && clusterfull

package cluster

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

var (
	upstreamQueue = flag.String("queue", sidecarImage, "image of queue-proxy for Knative's own tests; "+knativeQueue+" is Knative's")
	upstreamOnly  = flag.String("only", "", "regular expression for the names of Knative's own tests, in the form PACKAGE.TEST; -update then has no effect")
)

// upstreamModule is the directory of the go.mod file that pins Knative's tests.
const upstreamModule = "knative-tests"

// upstreamBound is the timeout for the tests of one package.
const upstreamBound = 40 * time.Minute

// upstreamPackages lists the packages of knative.dev/serving/test whose tests run, in order.
var upstreamPackages = []string{"conformance/runtime", "conformance/api/v1", "e2e", "e2e/multicontainerprobing"}

// upstreamImages lists the names of the test images.
var upstreamImages = []string{
	"autoscale", "grpc-ping", "hellohttp2", "helloworld", "readiness", "runtime",
	"servingcontainer", "sidecarcontainer", "singlethreaded", "timeout", "wsserver",
}

// upstreamConfig contains the settings that Knative uses for these tests, and the default
// settings of the release that the tests expect.
var upstreamConfig = map[string]string{
	"autoscaler": `{"stable-window":"60s","scale-to-zero-grace-period":"30s"}`,
	"observability": `{"logging.enable-request-log":"true","logging.enable-probe-request-log":"true","logging.request-log-template":` + strconv.Quote(
		`{"httpRequest": {"requestMethod": "{{.Request.Method}}", "requestUrl": "{{js .Request.RequestURI}}", "requestSize": "{{.Request.ContentLength}}", `+
			`"status": {{.Response.Code}}, "responseSize": "{{.Response.Size}}", "userAgent": "{{js .Request.UserAgent}}", "remoteIp": "{{js .Request.RemoteAddr}}", `+
			`"serverIp": "{{.Revision.PodIP}}", "referer": "{{js .Request.Referer}}", "latency": "{{.Response.Latency}}s", "protocol": "{{.Request.Proto}}"}, "traceId": "{{.TraceID}}"}`) + `}`,
}

// The results of a test that does not pass.
const (
	byDesign  = "fails by design"
	cannotRun = "cannot run here"
	passed    = "passed"
)

// A deviation is the reason why a test fails or is skipped.
type deviation struct{ status, why string }

// upstreamDeviations contains the tests and test cases that do not pass.
var upstreamDeviations = map[string]deviation{
	"e2e.TestHelloHTTP2WithEmptyPortName":                                             {cannotRun, "Knative skips it: knative/serving issue 4283"},
	"conformance/api/v1.TestServiceCreateWithMultipleContainers/digest_validation":    {cannotRun, "Knative skips it for images that were not pulled from a registry"},
	"conformance/api/v1.TestServiceCreateWithMultipleContainers/digest_validation#01": {cannotRun, "Knative skips it for images that were not pulled from a registry"},
}

// upstreamOther lists the tests that are not run, by the subject that they test.
var upstreamOther = map[string][]string{
	"autoscaler": {
		"e2e.TestAutoscaleUpDownUp", "e2e.TestAutoscaleUpCountPods", "e2e.TestRPSBasedAutoscaleUpCountPods", "e2e.TestAutoscaleSustaining",
		"e2e.TestTargetBurstCapacity", "e2e.TestTargetBurstCapacityMinusOne", "e2e.TestTargetBurstCapacityZero", "e2e.TestFastScaleToZero",
		"e2e.TestActivationScale", "e2e.TestInitScalePositive", "e2e.TestMinScaleTransition", "e2e.TestMinScale", "e2e.TestMinScaleAnnotationChange",
	},
	"routes and the ingress": {
		"e2e.TestEgressTraffic", "e2e.TestMultipleNamespace", "e2e.TestConflictingRouteService", "e2e.TestGradualRollout", "e2e.TestRollbackBYOName",
		"e2e.TestRoutesNotReady", "e2e.TestRouteVisibilityChanges", "e2e.TestServiceToServiceCall", "e2e.TestSvcToSvcViaActivator", "e2e.TestCallToPublicService",
		"e2e.TestSubrouteLocalSTS", "e2e.TestSubrouteVisibilityPublicToPrivate", "e2e.TestSubrouteVisibilityPrivateToPublic",
		"conformance/api/v1.TestBlueGreenRoute", "conformance/api/v1.TestRouteGetAndList", "conformance/api/v1.TestRouteCreation",
		"conformance/api/v1.TestServiceWithTrafficSplit",
	},
	"objects of the API": {
		"e2e.TestEmptyDir", "e2e.TestImagePullError", "e2e.TestPodScheduleError", "e2e.TestResourceQuotaError", "e2e.TestServiceDryRunValidationWithInvalidPodSpec",
		"conformance/api/v1.TestConfigurationGetAndList", "conformance/api/v1.TestUpdateConfigurationMetadata", "conformance/api/v1.TestContainerErrorMsg",
		"conformance/api/v1.TestContainerExitingMsg",
		"conformance/api/v1.TestServiceGenerateName", "conformance/api/v1.TestRouteAndConfigGenerateName",
		"conformance/api/v1.TestRevisionGetAndList", "conformance/api/v1.TestServiceAccountValidation", "conformance/api/v1.TestServiceCreateListAndDelete",
		"conformance/api/v1.TestServiceCreateAndUpdate", "conformance/api/v1.TestServiceBYOName", "conformance/api/v1.TestAnnotationPropagation",
		"conformance/api/v1.TestLabelPropagation", "conformance/api/v1.TestServiceCreateWithEmptyDir", "conformance/api/v1.TestConfigMapVolume",
		"conformance/api/v1.TestProjectedConfigMapVolume", "conformance/api/v1.TestSecretVolume", "conformance/api/v1.TestProjectedSecretVolume",
		"conformance/api/v1.TestProjectedComplex", "conformance/api/v1.TestProjectedServiceAccountToken",
	},
}

func TestFullKnativeTestsPass(t *testing.T) {
	serving(t)
	prepareUpstream(t)
	results := map[string]upstreamResult{}
	for _, p := range upstreamPackages {
		tests := upstreamTests(t, p)
		if len(tests) == 0 {
			continue
		}
		maps.Copy(results, runUpstream(t, p, tests))
		for _, name := range tests {
			if results[name].status == "" {
				t.Errorf("%s: no result", name)
			}
		}
	}
	if len(results) == 0 {
		t.Fatal("no tests to run")
	}
	compareUpstream(t, results)
	text := upstreamSummary(moduleVersion(t, upstreamModule, "knative.dev/serving"), results)
	fmt.Printf("\n%s\n", text)
	if *update && !t.Failed() && *upstreamOnly == "" && *upstreamQueue == sidecarImage {
		if err := harness.WriteSection("results.txt", "upstream", "\n"+text+"\n"); err != nil {
			t.Error(err)
		}
	}
}

// prepareUpstream installs what Knative's tests expect in a cluster: their images and
// namespaces, the configuration, and the Service of the ingress.
func prepareUpstream(t *testing.T) {
	t.Helper()
	bin, err := programs(upstreamModule)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range upstreamImages {
		if err := it.importProgram(bin+"/"+name, "dev.local/"+name+":dev", "/ko-app/"+name); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range upstreamConfig {
		if err := patchConfig(name, data); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = patchConfig(name, servingConfig[name]) })
	}
	if err := setQueueImage(*upstreamQueue); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = setQueueImage(sidecarImage) })
	dir, err := moduleField(upstreamModule, "knative.dev/serving", "Dir")
	if err != nil {
		t.Fatal(err)
	}
	// The address of the ingress is set by a flag. The tests only verify that the Service has
	// no other ports.
	files := []string{it.state + "/upstream.yaml", dir + "/test/config/cluster-resources.yaml", dir + "/test/config/test-resources.yaml"}
	if err := os.WriteFile(files[0], []byte(`apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: v1
kind: Service
metadata: {name: istio-ingressgateway, namespace: istio-system}
spec: {clusterIP: None}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		kubectl(t, "apply", "-f", f)
		t.Cleanup(func() { _, _ = run(nil, "kubectl", "delete", "--wait=false", "-f", f) })
	}
	eventually(t, "the namespace of the Knative tests has a service account", func() error {
		return it.api.ok("/api/v1/namespaces/serving-tests/serviceaccounts/default")
	})
}

// upstreamProgram returns the test binary of a package (see test/cluster/build).
func upstreamProgram(t *testing.T, p string) string {
	t.Helper()
	bin, err := programs(upstreamModule)
	if err != nil {
		t.Fatal(err)
	}
	return bin + "/" + strings.ReplaceAll(p, "/", "-") + ".test"
}

// upstreamTests returns the names of the tests in a package, with the package as prefix, except
// for tests of other subjects.
func upstreamTests(t *testing.T, p string) []string {
	t.Helper()
	out, err := run(nil, upstreamProgram(t, p), "-test.list", ".")
	if err != nil {
		t.Fatal(err)
	}
	others := map[string]bool{}
	for _, names := range upstreamOther {
		for _, name := range names {
			if strings.HasPrefix(name, p+".") {
				others[name] = true
			}
		}
	}
	only, err := regexp.Compile(*upstreamOnly)
	if err != nil {
		t.Fatal(err)
	}
	var tests []string
	for line := range strings.FieldsSeq(out) {
		name := p + "." + line
		if !others[name] && only.MatchString(name) {
			tests = append(tests, name)
		}
		delete(others, name)
	}
	for name := range others {
		t.Errorf("%s: listed in upstreamOther, but not found in Knative", name)
	}
	return tests
}

// An upstreamResult is the result of a test or a test case.
type upstreamResult struct {
	status string // "pass", "fail" or "skip"
	output []string
}

// runUpstream runs tests of a package and returns the results of the tests and their subtests.
func runUpstream(t *testing.T, p string, tests []string) map[string]upstreamResult {
	t.Helper()
	var names []string
	for _, name := range tests {
		names = append(names, strings.TrimPrefix(name, p+"."))
	}
	c := exec.CommandContext(t.Context(), "go", "tool", "test2json", "-t", upstreamProgram(t, p), "-test.v=test2json", "-test.parallel=6",
		"-test.timeout="+upstreamBound.String(), "-test.run=^("+strings.Join(names, "|")+")$",
		"-dockerrepo=dev.local", "-tag=dev", "-ingressendpoint="+nodeAddress, "-ingress-class=test.ingress.networking.knative.dev",
		"-enable-alpha", "-enable-beta", "-disable-logstream")
	c.Env = append(os.Environ(), "SYSTEM_NAMESPACE=knative-serving")
	log, err := os.Create(it.logs + "/upstream-" + strings.ReplaceAll(p, "/", "-") + ".log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.Stderr = log
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	results, err := readUpstream(p, out, log)
	// A failed test causes an exit error in addition to its result.
	if wait := c.Wait(); err != nil {
		t.Fatalf("%s: %v", p, errors.Join(err, wait))
	}
	return results
}

// readUpstream parses the events of test2json.
func readUpstream(p string, events io.Reader, log io.Writer) (map[string]upstreamResult, error) {
	results := map[string]upstreamResult{}
	for d := json.NewDecoder(events); ; {
		var e struct{ Action, Test, Output string }
		err := d.Decode(&e)
		if errors.Is(err, io.EOF) {
			return results, nil
		}
		if err != nil {
			return nil, err
		}
		r := results[p+"."+e.Test]
		switch e.Action {
		case "output":
			r.output = append(r.output, e.Output)
			fmt.Fprint(log, e.Output)
		case "pass", "fail", "skip":
			r.status = e.Action
			if e.Test != "" {
				fmt.Printf("    %s.%s: %s\n", p, e.Test, e.Action)
			}
		}
		if e.Test != "" {
			results[p+"."+e.Test] = r
		}
	}
}

// compareUpstream fails the test if a result differs from upstreamDeviations.
func compareUpstream(t *testing.T, results map[string]upstreamResult) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		_, known := upstreamDeviations[name]
		switch {
		case len(casesOf(name, results)) > 0:
			// The result of a test with subtests follows from the results of its subtests.
		case r.status == "pass" && known:
			t.Errorf("%s: got pass, want %v", name, upstreamDeviations[name])
		case r.status != "pass" && !known:
			t.Errorf("%s: got %q, want pass:\n%s", name, r.status, strings.Join(r.output[max(0, len(r.output)-25):], ""))
		}
	}
	for name := range upstreamDeviations {
		if _, ok := results[name]; !ok && *upstreamOnly == "" {
			t.Errorf("%s: no result, want the result in upstreamDeviations", name)
		}
	}
}

// casesOf returns the sorted names of the subtests of a test, without the subtests that have subtests themselves.
func casesOf(name string, results map[string]upstreamResult) []string {
	var all []string
	for _, other := range slices.Sorted(maps.Keys(results)) {
		if strings.HasPrefix(other, name+"/") && len(casesOf(other, results)) == 0 {
			all = append(all, other)
		}
	}
	return all
}

// upstreamSummary returns the results in Markdown: the number of tests for each package and result, the tests and
// subtests that do not pass, and for each subject the number of tests that are not run.
func upstreamSummary(version string, results map[string]upstreamResult) string {
	count := map[string]map[string]int{} // number of tests by package and status
	for _, p := range upstreamPackages {
		count[p] = map[string]int{}
	}
	var deviations strings.Builder
	for _, name := range slices.Sorted(maps.Keys(results)) {
		p, test, _ := strings.Cut(name, ".")
		d, known := upstreamDeviations[name]
		if known {
			count[p][d.status]++
			fmt.Fprintf(&deviations, "| %s | `%s` | %s: %s |\n", p, test, d.status, d.why)
		} else if !strings.Contains(test, "/") && results[name].status == "pass" {
			count[p][passed]++
		}
	}
	text := fmt.Sprintf("Knative Serving %s\n\n| package | %s | %s | %s |\n|---|---|---|---|\n",
		version, passed, byDesign, cannotRun)
	for _, p := range upstreamPackages {
		text += fmt.Sprintf("| %s | %d | %d | %d |\n", p, count[p][passed], count[p][byDesign], count[p][cannotRun])
	}
	text += "\n| package | test or case | result |\n|---|---|---|\n" + deviations.String() +
		"\nThe other tests of these packages are not run ([list](../test/cluster/upstream_test.go)):\n\n"
	for _, subject := range slices.Sorted(maps.Keys(upstreamOther)) {
		text += fmt.Sprintf("* **%s**: %d tests\n", subject, len(upstreamOther[subject]))
	}
	return text
}
