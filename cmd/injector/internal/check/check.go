// Package check examines an installation of the injector in a cluster: the API server, the webhook or the policy, the
// namespaces, the pods and the Services. It sends only read requests and access reviews.
package check

import (
	"context"
	"time"
)

// API sends requests to an API server.
type API interface {
	// Get returns the body of the response to a GET request. The path can contain a query.
	Get(ctx context.Context, path string) ([]byte, error)
	// Create sends a POST request with a JSON object and returns the body of the response.
	Create(ctx context.Context, path string, object []byte) ([]byte, error)
}

// Options select the objects of a check.
type Options struct {
	Configuration string // name of the MutatingWebhookConfiguration and of the MutatingAdmissionPolicy
	Secret        string // name of the Secret with the certificate of the webhook
	Namespace     string // only check the pods and Services of this namespace; "" means the selected namespaces
	Everywhere    bool   // check pods and Services in all namespaces, including those that are not selected
	Version       string // version of this program
	Now           time.Time
}

// Result is the result of a check.
type Result string

// The values of Result. A warning does not affect the exit code.
const (
	Success Result = "success"
	Warning Result = "warning"
	Error   Result = "error"
)

// Check is one check and its result.
type Check struct {
	Description string   `json:"description"`
	Result      Result   `json:"result"`
	Problems    []string `json:"problems,omitempty"` // a sentence for each problem
	Hint        string   `json:"hint,omitempty"`     // how to fix the problems
}

// Category is a group of checks.
type Category struct {
	Name   string  `json:"categoryName"`
	Checks []Check `json:"checks"`
}

// Report contains the results of all checks.
type Report struct {
	Success    bool       `json:"success"` // no check has the result Error
	Categories []Category `json:"categories"`
}

// Run checks an installation. The error is not nil if the API server is not reachable. If a permission is missing, the
// report contains only the checks of the API server.
func Run(ctx context.Context, api API, options Options) (*Report, error) {
	r := &run{ctx: ctx, api: api, options: options}
	if err := r.checkAPI(); err != nil {
		return nil, err
	}
	if !r.failed {
		r.checkInjector()
		r.checkNamespaces()
		r.checkWorkloads()
		r.checkVersions()
	}
	return &Report{Success: !r.failed, Categories: r.categories}, nil
}

// run is the state of one call to Run.
type run struct {
	ctx        context.Context
	api        API
	options    Options
	categories []Category
	failed     bool // a check has the result Error

	policyOnly   bool              // there is a policy and no webhook
	hasPolicies  bool              // the API server supports MutatingAdmissionPolicy
	namespaces   map[string]string // label of each namespace; see label
	injectorPods []pod             // pods of the webhook
	pods         []pod             // pods with a sidecar
}

// begin starts a category. The following checks belong to it.
func (r *run) begin(name string) {
	r.categories = append(r.categories, Category{Name: name, Checks: []Check{}})
}

// add adds a check. The result is Success if there are no problems, and the value of result otherwise.
func (r *run) add(description string, result Result, problems []string, hint string) {
	c := Check{Description: description, Result: result, Problems: problems, Hint: hint}
	if len(problems) == 0 {
		c.Result, c.Hint = Success, ""
	}
	r.failed = r.failed || c.Result == Error
	last := &r.categories[len(r.categories)-1]
	last.Checks = append(last.Checks, c)
}

// addError adds a check that could not be performed because of err.
func (r *run) addError(description string, err error) {
	r.add(description, Error, []string{err.Error()}, "")
}
