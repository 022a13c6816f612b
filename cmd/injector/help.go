package main

import "strings"

// helpOf is what a command says of itself before its flags. name is that of its flags.
func helpOf(name string) string {
	texts := map[string]string{
		"inject": `Put a queue-proxy into the pods of manifests, and let their Services follow.

usage: injector inject [-f FILE|DIR|-]... [-o yaml|json|diff] [-in-place | -output-dir DIR] [options]

Without -f it reads the standard input. Files are edited: comments, order and blanks stay, and
injector uninject restores every byte. Every option is also a variable of the environment and an
annotation of the pod: injector options.

  injector inject -f app.yaml -o diff --image registry.example/queue-proxy:1
  helm template . | injector inject --image registry.example/queue-proxy:1 | kubectl apply -f -
  injector inject -f deploy/ -in-place -on-refusal=skip --image registry.example/queue-proxy:1
  injector inject -f db-front.yaml --container web --port 8080 --image registry.example/queue-proxy:1

Exit codes: 0 done; 1 with -o diff, there is a difference; 2 refused or unreadable, and nothing is
written; 3 with -on-refusal=skip, something was refused and the rest is done.
`,
		"uninject": `Take the queue-proxy out of manifests again: every byte that is not yours is as it was.

usage: injector uninject [-f FILE|DIR|-]... [-o yaml|json|diff] [-in-place | -output-dir DIR]

  injector uninject -f app.yaml -in-place
  kubectl get deployment web -o yaml | injector uninject | kubectl apply -f -
`,
		"explain": `Say of each object what inject would do, and why: which port is for requests, what moves, what
looks wrong in its probes. Nothing is written.

usage: injector explain [-f FILE|DIR|-]... [-o text|json] [options]

  injector explain -f app.yaml
  injector explain -f deploy/ -o json | jq '.[] | select(.verdict == "refused")'
`,
		"status": `Say of each Service whether all of its pods have the sidecar, so that it may follow them.

usage: injector status [-f FILE|DIR|-]...

  kubectl get pods,services -o json | injector status

Exit codes: 0 all may; 1 one must wait, or no Service finds a pod with a sidecar.
`,
		"serve": `Answer an API server's reviews as a webhook: deploy/ has the manifests for it.

usage: injector serve [flags] [options]

  injector serve -self-managed --image registry.example/queue-proxy:1
`,
		"policy": `Print a MutatingAdmissionPolicy that injects without a server (Kubernetes 1.36).

usage: injector policy [options]

  injector policy --image registry.example/queue-proxy:1 --concurrency 4 | kubectl apply -f -
`,
	}
	text, ok := texts[strings.TrimPrefix(name, "injector ")]
	if !ok {
		return usageText
	}
	return text + "\nFlags:\n"
}
