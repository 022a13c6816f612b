package check

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// Minimum minor versions of Kubernetes: minMinor for webhooks with match conditions, and
// minPolicyMinor for policies.
const (
	minMinor       = 28
	minPolicyMinor = 36
)

// itemsPerPage is the maximum number of objects in a response from the API server.
const itemsPerPage = 250

// admissionGroup is the API group of webhooks and policies.
const admissionGroup = "admissionregistration.k8s.io"

// Resources that the check reads.
const (
	webhooks       = "mutatingwebhookconfigurations"
	policies       = "mutatingadmissionpolicies"
	policyBindings = "mutatingadmissionpolicybindings"
)

// checkAPI checks the version of the API server and the permissions of the user. It returns an error if the API server
// is not reachable.
func (r *run) checkAPI() error {
	var info version.Info
	if err := r.get("/version", &info); err != nil {
		return fmt.Errorf("cannot read the version of the API server: %w", err)
	}
	r.begin("kubernetes-api")
	r.add("API server is reachable", Error, nil, "")

	var problems []string
	minor, err := strconv.Atoi(strings.TrimRight(info.Minor, "+"))
	switch {
	case err != nil:
		problems = []string{fmt.Sprintf("unknown version %q", info.GitVersion)}
	case info.Major == "1" && minor < minMinor:
		problems = []string{fmt.Sprintf("the version is %s; the webhook requires 1.%d, and the policy requires 1.%d", info.GitVersion, minMinor, minPolicyMinor)}
	}
	r.add("Kubernetes version is supported", Error, problems, "")

	var served metav1.APIResourceList
	if err := r.get("/apis/"+admissionGroup+"/v1", &served); err != nil {
		return fmt.Errorf("cannot read the resources of the API server: %w", err)
	}
	r.hasPolicies = slices.ContainsFunc(served.APIResources, func(a metav1.APIResource) bool { return a.Name == policies })
	r.checkPermissions()
	return nil
}

// checkPermissions checks that the user can list the resources that the other checks need.
func (r *run) checkPermissions() {
	const description = "required permissions are granted"
	type listed struct {
		group, resource string
		namespaced      bool // the permission is required in Options.Namespace, if it is set
	}
	needed := []listed{{"", "namespaces", false}, {"", "pods", true}, {"", "services", true}, {admissionGroup, webhooks, false}}
	if r.hasPolicies {
		needed = append(needed, listed{admissionGroup, policies, false}, listed{admissionGroup, policyBindings, false})
	}
	var problems []string
	for _, l := range needed {
		a := authorizationv1.ResourceAttributes{Verb: "list", Group: l.group, Resource: l.resource}
		where := ""
		switch namespace := r.options.Namespace; {
		case l.namespaced && namespace != "":
			a.Namespace, where = namespace, " in namespace "+namespace
		case l.namespaced:
			where = " in all namespaces"
		}
		granted, err := r.isGranted(a)
		if err != nil {
			r.addError(description, err)
			return
		}
		if !granted {
			problems = append(problems, "no permission to list "+l.resource+where)
		}
	}
	r.add(description, Error, problems, "the user needs these permissions; the other checks were skipped")
}

// isGranted reports whether the user has a permission.
func (r *run) isGranted(a authorizationv1.ResourceAttributes) (bool, error) {
	review := authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec:     authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return false, err
	}
	response, err := r.api.Create(r.ctx, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
	if err == nil {
		err = json.Unmarshal(response, &review)
	}
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	return review.Status.Allowed, nil
}

// get decodes the response to a GET request into result.
func (r *run) get(path string, result any) error {
	body, err := r.api.Get(r.ctx, path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, result)
}

// list calls add with each object of a list. query selects the objects, and can be nil.
func (r *run) list(path string, query url.Values, add func(object json.RawMessage) error) error {
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", strconv.Itoa(itemsPerPage))
	for {
		var page struct {
			Metadata metav1.ListMeta   `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if err := r.get(path+"?"+query.Encode(), &page); err != nil {
			return err
		}
		for _, item := range page.Items {
			if err := add(item); err != nil {
				return err
			}
		}
		if page.Metadata.Continue == "" {
			return nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// find decodes the object with the given name into result, and reports whether the object exists.
func (r *run) find(path, name string, result any) (found bool, err error) {
	err = r.list(path, url.Values{"fieldSelector": {"metadata.name=" + name}}, func(object json.RawMessage) error {
		found = true
		return json.Unmarshal(object, result)
	})
	return found, err
}
