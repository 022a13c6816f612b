package main

import (
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

func TestPatchWithoutTemplateIsNotChanged(t *testing.T) {
	const patch = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n    name: web # a comment\nspec: {replicas: 3}\n"
	for _, in := range []string{patch, "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: web}\nspec:\n  jobTemplate: {spec: {template: null}}\n"} {
		for _, command := range []string{"inject", "uninject"} {
			out, report, code := injector(t, command, in)
			harness.Equal(t, code, done, command, report)
			harness.Equal(t, out, in, command)
			harness.Contains(t, report, "warning: the ")
			harness.Contains(t, report, "if the document is a patch")
		}
	}
}
