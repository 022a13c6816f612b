package main

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestPatchWithoutContainersIsNotChanged(t *testing.T) {
	const patch = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n    name: web # a comment\nspec:\n  replicas: 3\n"
	const cronJob = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: web}\nspec:\n  jobTemplate: {spec: {template: null}}\n"
	for in, missing := range map[string]string{
		patch: "the Deployment has no spec.template; ",
		patch + "  template: {metadata: {labels: {a: b}}}\n":   "the Deployment has no spec.template.spec.containers; ",
		patch + "  template: {spec: {priorityClassName: a}}\n": "the Deployment has no spec.template.spec.containers; ",
		cronJob: "the CronJob has no spec.jobTemplate.spec.template; ",
	} {
		for _, command := range []string{"inject", "uninject"} {
			out, report, code := injector(t, command, in)
			harness.Equal(t, code, done, command, report)
			harness.Equal(t, out, in, command)
			harness.Contains(t, report, "warning: "+missing+"if the document is a patch")
		}
	}
}
