package check

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	admissionregv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// expiryWarning is the remaining validity of a certificate for which the check prints a warning. The alert
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

// checkWebhook checks the pods, the CA bundle and the certificate of the webhook.
func (r *run) checkWebhook(c *admissionregv1.MutatingWebhookConfiguration) {
	const hasService = "webhook has a Service"
	i := slices.IndexFunc(c.Webhooks, func(w admissionregv1.MutatingWebhook) bool { return w.ClientConfig.Service != nil })
	if i < 0 {
		r.add(hasService, Warning, []string{"the webhook is specified by a URL, so the pods and the certificate were not checked"}, "")
		return
	}
	ref := c.Webhooks[i].ClientConfig.Service
	var service corev1.Service
	found, err := r.find("/api/v1/namespaces/"+ref.Namespace+"/services", ref.Name, &service)
	switch {
	case err != nil:
		r.addError(hasService, err)
	case !found:
		r.add(hasService, Error, []string{fmt.Sprintf("Service %s/%s does not exist", ref.Namespace, ref.Name)}, runbook)
	default:
		r.add(hasService, Error, nil, "")
		r.checkInjectorPods(c, &service)
	}
	r.checkCertificate(c, ref)
}

// checkInjectorPods checks that the pods of the webhook are ready.
func (r *run) checkInjectorPods(c *admissionregv1.MutatingWebhookConfiguration, service *corev1.Service) {
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
	fails := slices.ContainsFunc(c.Webhooks, func(w admissionregv1.MutatingWebhook) bool {
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

// checkCertificate checks that API servers accept the certificate of the webhook.
func (r *run) checkCertificate(c *admissionregv1.MutatingWebhookConfiguration, ref *admissionregv1.ServiceReference) {
	roots := map[string]*x509.CertPool{} // by the name of the webhook
	var problems []string
	for _, w := range c.Webhooks {
		pool := x509.NewCertPool()
		switch bundle := w.ClientConfig.CABundle; {
		case len(bundle) == 0:
			problems = append(problems, fmt.Sprintf("webhook %s has no caBundle", w.Name))
		case !pool.AppendCertsFromPEM(bundle):
			problems = append(problems, fmt.Sprintf("the caBundle of webhook %s contains no certificate", w.Name))
		}
		roots[w.Name] = pool
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
	result, problems := r.verify(name, secret.Data.Certificate, roots, ref.Name+"."+ref.Namespace+".svc")
	r.add(description, result, problems, runbook)
}

// verify verifies the certificate in a Secret with the CA bundle of each webhook. An error that all webhooks have is
// returned once.
func (r *run) verify(secret string, certificate []byte, roots map[string]*x509.CertPool, host string) (result Result, problems []string) {
	failed := map[string][]string{} // names of webhooks, by error
	var expires time.Time
	for _, name := range slices.Sorted(maps.Keys(roots)) {
		until, err := verifyCertificate(certificate, roots[name], host, r.options.Now)
		if err != nil {
			failed[err.Error()] = append(failed[err.Error()], name)
		} else {
			expires = until
		}
	}
	for _, text := range slices.Sorted(maps.Keys(failed)) {
		problem := fmt.Sprintf("Secret %s: %s", secret, text)
		if len(failed[text]) < len(roots) {
			problem += " (caBundle of webhook " + strings.Join(failed[text], ", ") + ")"
		}
		problems = append(problems, problem)
	}
	if len(problems) > 0 {
		return Error, problems
	}
	if expires.Before(r.options.Now.Add(expiryWarning)) {
		return Warning, []string{fmt.Sprintf("the certificate expires at %s", expires.Format(time.RFC3339))}
	}
	return Success, nil
}

// verifyCertificate verifies a PEM certificate chain for a DNS name, and returns the time when the first certificate
// expires.
func verifyCertificate(text []byte, roots *x509.CertPool, host string, now time.Time) (time.Time, error) {
	var leaf *x509.Certificate
	intermediates := x509.NewCertPool()
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}, err
		}
		if leaf == nil {
			leaf = c
		} else {
			intermediates.AddCert(c)
		}
	}
	if leaf == nil {
		return time.Time{}, errors.New("tls.crt contains no certificate")
	}
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: intermediates, CurrentTime: now})
	return leaf.NotAfter, err
}
