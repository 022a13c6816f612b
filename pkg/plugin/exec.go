package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// Exec runs a command in a container of a pod and returns its exit code. It returns an error if the command did not
// run.
func (c *Client) Exec(ctx context.Context, namespace, pod, container string, stdout, stderr io.Writer, command ...string) (int, error) {
	u := c.base.JoinPath("api/v1/namespaces", namespace, "pods", pod, "exec")
	u.RawQuery = url.Values{"container": {container}, "command": command, "stdout": {"true"}, "stderr": {"true"}}.Encode()
	executor, err := newExecutor(c.config, u)
	if err != nil {
		return 0, err
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr})
	if exit, ok := errors.AsType[utilexec.CodeExitError](err); ok {
		return exit.Code, nil
	}
	if err != nil {
		err = cmp.Or(c.notExecutable(ctx, namespace, pod, container), err)
	}
	return 0, err
}

// notExecutable returns an error if a pod does not exist, or if its container does not exist or is not running. It
// returns nil if the pod cannot be read, because a user who may run commands may not be allowed to read pods.
func (c *Client) notExecutable(ctx context.Context, namespace, name, container string) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	res, err := c.get(ctx, "application/json", nil, "api/v1/namespaces", namespace, "pods", name)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	pod := new(corev1.Pod)
	switch {
	case isHTML(res) || res.StatusCode == http.StatusUnauthorized:
		return responseError(res)
	case res.StatusCode == http.StatusNotFound:
		return fmt.Errorf("namespace %s has no pod %s", namespace, name)
	case res.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(res.Body, maxPods)).Decode(pod) != nil || pod.Kind != "Pod":
		return nil
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("pod %s has ended", name)
	}
	sidecar, found := SidecarOf(pod, container)
	switch {
	case !found:
		return fmt.Errorf("pod %s has no container %s; use --container to select another container", name, container)
	case sidecar.Absent != "":
		return fmt.Errorf("container %s of pod %s is not running: %s", container, name, sidecar.Absent)
	}
	return nil
}

// newExecutor returns an executor that uses WebSocket, as kubectl does. If the server or a proxy does not support
// WebSocket, the executor uses SPDY.
func newExecutor(config *rest.Config, u *url.URL) (remotecommand.Executor, error) {
	websocket, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, u.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, u)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// PodOf returns the name of the pod that arg selects. arg is the name of a pod, pod/NAME, or TYPE/NAME of an object
// with a selector for pods. If the selector matches several pods, a running pod is preferred.
func (c *Client) PodOf(ctx context.Context, getter resource.RESTClientGetter, namespace, arg string) (string, error) {
	kind, name, ok := strings.Cut(arg, "/")
	switch {
	case !ok:
		return arg, nil
	case kind == "pod" || kind == "pods":
		return name, nil
	}
	objects, err := resource.NewBuilder(getter).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceTypeOrNameArgs(false, arg).SingleResourceType().Do().Infos()
	switch {
	case apierrors.IsUnauthorized(err):
		return "", errUnauthorized
	case err != nil:
		if page := c.htmlError(ctx); page != nil { // client-go only reports that the page is not valid JSON
			return "", page
		}
		if isUnknownType(getter, kind) {
			return "", fmt.Errorf("%s: the API server has no resource type %q; use the name of a pod, or TYPE/NAME such as deployment/web", arg, kind)
		}
		return "", err
	}
	selector, err := selectorOf(objects[0].Object)
	if err != nil {
		return "", fmt.Errorf("%s: %w", arg, err)
	}
	pods, err := c.pods(ctx, url.Values{"labelSelector": {selector.String()}}, "api/v1/namespaces", namespace, "pods")
	switch {
	case err != nil:
		return "", err
	case len(pods.Items) == 0:
		return "", fmt.Errorf("%s has no pods", arg)
	}
	running := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	return pods.Items[max(0, running)].Name, nil
}

// htmlError returns an error if the server returns an HTML page instead of the list of API versions.
func (c *Client) htmlError(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	res, err := c.get(ctx, "application/json", nil, "api")
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	if isHTML(res) {
		return errNotKubernetes
	}
	return nil
}

// isUnknownType reports whether the API server has no resource type with the given name. It returns false if the types
// cannot be read.
func isUnknownType(getter resource.RESTClientGetter, name string) bool {
	mapper, err := getter.ToRESTMapper()
	if err != nil {
		return false
	}
	_, err = mapper.ResourceFor(schema.ParseGroupResource(name).WithVersion(""))
	return meta.IsNoMatchError(err)
}

// selectorOf returns the selector of a workload or a Service.
func selectorOf(object runtime.Object) (labels.Selector, error) {
	spec, _, _ := unstructured.NestedMap(object.(*unstructured.Unstructured).Object, "spec", "selector")
	if len(spec) == 0 {
		return nil, errors.New("the selector for pods is missing")
	}
	if spec["matchLabels"] == nil && spec["matchExpressions"] == nil { // the selector of a Service
		spec = map[string]any{"matchLabels": spec}
	}
	var selector metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &selector); err != nil {
		return nil, err
	}
	return metav1.LabelSelectorAsSelector(&selector)
}
