package check

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// The check prints a warning if a certificate expires within expiryWarning. The alert
// QueueProxyInjectorCertificateExpires has the same value.
const expiryWarning = 7 * 24 * time.Hour

const runbook = "see https://github.com/queue-proxy/queue-proxy/blob/main/docs/runbook.md#the-injector"

// checkInjector checks the webhook and the policy. At least one of them is required.
func (r *run) checkInjector() {
	r.begin("injector")
	name := r.options.Configuration
	const exists = "webhook or policy exists"
	var webhook admissionregv1.MutatingWebhookConfiguration
	hasWebhook, err := r.find("/apis/"+admissionGroup+"/v1/"+webhooks, name, &webhook)
	if err != nil {
		r.addError(exists, err)
		return
	}
	var policy struct{}
	hasPolicy := false
	if r.hasPolicies {
		if hasPolicy, err = r.find("/apis/"+admissionGroup+"/v1/"+policies, name, &policy); err != nil {
			r.addError(exists, err)
			return
		}
	}
	var problems []string
	if !hasWebhook && !hasPolicy {
		problems = []string{fmt.Sprintf("MutatingWebhookConfiguration %[1]s and MutatingAdmissionPolicy %[1]s do not exist, so pods are not injected when they are created", name)}
	}
	r.add(exists, Error, problems, "install the injector, or set --configuration; see https://github.com/queue-proxy/queue-proxy/blob/main/deploy/README.md")
	r.policyOnly = hasPolicy && !hasWebhook
	if hasPolicy {
		r.checkBindings(name)
	}
	if hasWebhook {
		r.checkWebhook(&webhook)
	}
}

// checkBindings checks that the policy has a binding. A policy without a binding has no effect.
func (r *run) checkBindings(name string) {
	bound := false
	err := r.list("/apis/"+admissionGroup+"/v1/"+policyBindings, nil, func(object json.RawMessage) error {
		var binding struct {
			Spec struct {
				PolicyName string `json:"policyName"`
			} `json:"spec"`
		}
		err := json.Unmarshal(object, &binding)
		bound = bound || binding.Spec.PolicyName == name
		return err
	})
	var problems []string
	switch {
	case err != nil:
		problems = []string{err.Error()}
	case !bound:
		problems = []string{"no MutatingAdmissionPolicyBinding refers to the policy " + name}
	}
	r.add("policy has a binding", Error, problems, "apply the complete output of injector policy")
}

// checkWebhook checks the pods, the CA bundle and the certificate for the first Service
// in the configuration. It does not check webhooks that use another Service.
func (r *run) checkWebhook(c *admissionregv1.MutatingWebhookConfiguration) {
	const hasService = "webhook has a Service"
	i := slices.IndexFunc(c.Webhooks, func(w admissionregv1.MutatingWebhook) bool { return w.ClientConfig.Service != nil })
	if i < 0 {
		r.add(hasService, Warning, []string{"the webhook is specified by a URL, so the pods and the certificate were not checked"}, "")
		return
	}
	ref := c.Webhooks[i].ClientConfig.Service
	all := slices.DeleteFunc(slices.Clone(c.Webhooks), func(w admissionregv1.MutatingWebhook) bool {
		other := w.ClientConfig.Service
		return other == nil || other.Namespace != ref.Namespace || other.Name != ref.Name
	})
	var service corev1.Service
	found, err := r.find("/api/v1/namespaces/"+ref.Namespace+"/services", ref.Name, &service)
	switch {
	case err != nil:
		r.addError(hasService, err)
	case !found:
		r.add(hasService, Error, []string{fmt.Sprintf("Service %s/%s does not exist", ref.Namespace, ref.Name)}, runbook)
	default:
		r.add(hasService, Error, nil, "")
		r.checkInjectorPods(all, &service)
	}
	r.checkCertificate(all, ref)
}

// checkInjectorPods checks that the pods of the webhooks are ready.
func (r *run) checkInjectorPods(webhooks []admissionregv1.MutatingWebhook, service *corev1.Service) {
	const description = "pods of the injector are ready"
	query := url.Values{"labelSelector": {labels.SelectorFromSet(service.Spec.Selector).String()}}
	err := r.listPods("/api/v1/namespaces/"+service.Namespace+"/pods", query, func(p pod) { r.injectorPods = append(r.injectorPods, p) })
	if err != nil {
		r.addError(description, err)
		return
	}
	ready := 0
	var problems []string
	for _, p := range r.injectorPods {
		if p.isReady() {
			ready++
		} else {
			problems = append(problems, fmt.Sprintf("Pod %s/%s is not ready", p.Namespace, p.Name))
		}
	}
	fails := slices.ContainsFunc(webhooks, func(w admissionregv1.MutatingWebhook) bool {
		return w.FailurePolicy == nil || *w.FailurePolicy == admissionregv1.Fail
	})
	result := Warning
	switch {
	case ready == 0 && fails:
		result = Error
		problems = append(problems, "no pod is ready, so the API server rejects pods (failurePolicy Fail)")
	case ready == 0:
		result = Error
		problems = append(problems, "no pod is ready, so pods start without a sidecar (failurePolicy Ignore)")
	case ready == 1 && fails:
		problems = append(problems, "only one pod is ready; if the pod fails, the API server rejects pods (failurePolicy Fail)")
	}
	r.add(description, result, problems, runbook)
}

// An authority contains the certificates in the caBundle of a webhook.
type authority struct {
	webhook string // name of the webhook
	roots   *x509.CertPool
}

// checkCertificate checks that API servers accept the certificate in the Secret for the webhooks. ref is the Service of
// the webhooks.
func (r *run) checkCertificate(webhooks []admissionregv1.MutatingWebhook, ref *admissionregv1.ServiceReference) {
	var authorities []authority
	var problems []string
	for _, w := range webhooks {
		a := authority{w.Name, x509.NewCertPool()}
		switch bundle := w.ClientConfig.CABundle; {
		case len(bundle) == 0:
			problems = append(problems, fmt.Sprintf("webhook %s has no caBundle", w.Name))
		case !a.roots.AppendCertsFromPEM(bundle):
			problems = append(problems, fmt.Sprintf("the caBundle of webhook %s contains no certificate", w.Name))
		}
		authorities = append(authorities, a)
	}
	r.add("webhook has a CA bundle", Error, problems, runbook)
	if len(problems) > 0 {
		return
	}

	const description = "certificate of the webhook is valid"
	name := ref.Namespace + "/" + r.options.Secret
	granted, err := r.isGranted(authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: ref.Namespace, Name: r.options.Secret})
	if err != nil {
		r.addError(description, err)
		return
	}
	if !granted {
		r.add(description, Warning, []string{"cannot check the certificate: no permission to get Secret " + name}, "")
		return
	}
	var secret struct {
		Data struct {
			Certificate []byte `json:"tls.crt"`
		} `json:"data"`
	}
	if err := r.get("/api/v1/namespaces/"+ref.Namespace+"/secrets/"+r.options.Secret, &secret); err != nil {
		r.add(description, Error, []string{fmt.Sprintf("read Secret %s: %v", name, err)}, "use --secret to specify the name of the Secret")
		return
	}
	leaf, intermediates, err := parseCertificates(secret.Data.Certificate)
	if err != nil {
		r.add(description, Error, []string{fmt.Sprintf("Secret %s: %v", name, err)}, runbook)
		return
	}
	result := Error
	options := x509.VerifyOptions{DNSName: ref.Name + "." + ref.Namespace + ".svc", Intermediates: intermediates, CurrentTime: r.options.Now}
	for _, a := range authorities {
		options.Roots = a.roots
		if _, err := leaf.Verify(options); err != nil {
			problems = append(problems, fmt.Sprintf("Secret %s: webhook %s: %v", name, a.webhook, err))
		}
	}
	if len(problems) == 0 && leaf.NotAfter.Before(r.options.Now.Add(expiryWarning)) {
		result, problems = Warning, []string{fmt.Sprintf("the certificate expires at %s", leaf.NotAfter.Format(time.RFC3339))}
	}
	r.add(description, result, problems, runbook)
}

// parseCertificates returns the first certificate and the other certificates of a PEM file.
func parseCertificates(text []byte) (leaf *x509.Certificate, intermediates *x509.CertPool, err error) {
	intermediates = x509.NewCertPool()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, err
		}
		if leaf == nil {
			leaf = c
		} else {
			intermediates.AddCert(c)
		}
	}
	if leaf == nil {
		return nil, nil, errors.New("tls.crt contains no certificate")
	}
	return leaf, intermediates, nil
}
