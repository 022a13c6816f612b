package main

import (
	"flag"
	"slices"
	"strings"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
	"github.com/queue-proxy/queue-proxy/pkg/manual"
)

// help is the text about a command with its flags, or about all of them: "". Package manual
// makes a page of manual of it.
func help(command string) string {
	text := map[string]string{
		"inject": injectHelp, "uninject": uninjectHelp, "explain": explainHelp, "status": statusHelp, "serve": serveHelp,
		"policy": policyHelp, "options": optionsHelp, "completion": completionHelp, "version": versionHelp,
	}[command]
	if text == "" {
		return overview
	}
	own, options := newFlags(command), newFlags(command)
	if flags := flagsOf(command); flags != nil {
		flags.VisitAll(func(f *flag.Flag) {
			to := own
			if isOption(f.Name) {
				to = options
			}
			to.Var(f.Value, f.Name, f.Usage)
			to.Lookup(f.Name).DefValue = f.DefValue
		})
	}
	if list := manual.Flags(own, valuesOf(command)); list != "" {
		text += "\nFlags:\n\n" + list
	}
	if list := manual.Flags(options, nil); list != "" {
		text += "\nOptions: each is also a variable of the environment and an annotation of the\npod. 'injector options' lists these names.\n\n" + list
	}
	return text
}

func isOption(name string) bool {
	return slices.ContainsFunc(inject.Table(), func(o inject.Option) bool { return o.Name == name })
}

// pages are what the manual pages are made of.
func pages() manual.Program {
	return manual.Program{Name: "injector", Version: version, Commands: commandNames(), Help: help}
}

// usage is the list of commands.
func usage() string {
	_, list, _ := strings.Cut(overview, "Usage:\n\n")
	list, _, _ = strings.Cut(list, "\n\n")
	return "usage:\n" + list + "\n"
}

// filesExit is what the commands that write manifests say of their exit codes.
const filesExit = `Exit codes: 0 done; 1 with -o diff, there is a difference; 2 refused or
unreadable, and nothing is written; 3 with -on-refusal=skip, something was
refused and the rest is done.
`

const overview = `injector puts a queue-proxy into the pods of workloads, and takes it out again:
in manifests, as a webhook, or as a policy of the API server.

Usage:

  injector inject [flags]      put a queue-proxy into the pods of manifests
  injector uninject [flags]    take it out again
  injector explain [flags]     say what inject would do, and why
  injector status [flags]      say which Services may follow their pods
  injector serve [flags]       answer an API server's reviews, as a webhook
  injector policy [flags]      print a policy that injects without a server
  injector options             list the options
  injector completion SHELL    print what completes commands in bash, zsh, fish
  injector version             print the version; also -version
  injector help [COMMAND]      print this, or more on a command; also -h, -help

Options say how to inject. Each is a flag, a variable of the environment and an
annotation of the pod; docs/injection.md explains them.

Examples:

  See what would change, then do it:
    injector inject -f app.yaml -o diff --image registry.example/queue-proxy:1
    injector inject -f app.yaml --image registry.example/queue-proxy:1 |
      kubectl apply -f -

` + filesExit

const injectHelp = `injector inject puts a queue-proxy into the pods of manifests, and lets their
Services follow. Files are edited: comments, order and blanks stay, and
'injector uninject' restores every byte.

Usage:

  injector inject [-f FILE|DIR|-]... [-o yaml|json|diff]
                  [-in-place | -output-dir DIR] [options]

Without -f it reads the standard input. A line about each object that makes pods
goes to the standard error.

Examples:

  injector inject -f app.yaml -o diff --image registry.example/queue-proxy:1

  helm template . | injector inject --image registry.example/queue-proxy:1 |
    kubectl apply -f -

  Edit the files of a folder, and leave what cannot be injected:
    injector inject -f deploy/ -in-place -on-refusal=skip \
      --image registry.example/queue-proxy:1

  Select a container and a port:
    injector inject -f app.yaml --container web --port 8080 \
      --image registry.example/queue-proxy:1

  In a pipeline, refuse a pod if the evidence for its port is weak:
    injector inject -f app.yaml --sure high \
      --image registry.example/queue-proxy:1

` + filesExit

const uninjectHelp = `injector uninject takes the queue-proxy out of manifests again: every byte that
is not the injector's is as it was.

Usage:

  injector uninject [-f FILE|DIR|-]... [-o yaml|json|diff]
                    [-in-place | -output-dir DIR]

Examples:

  injector uninject -f app.yaml -in-place

  kubectl get deployment web -o yaml | injector uninject | kubectl apply -f -

` + filesExit

const explainHelp = `injector explain prints for each object what inject would do. For each port, it
prints the evidence and the confidence. It also prints the missing information,
and errors in the probes. Nothing is written.

Usage:

  injector explain [-f FILE|DIR|-]... [-o text|json] [options]

Examples:

  injector explain -f app.yaml

  injector explain -f deploy/ -o json |
    jq '.[] | select(.verdict == "refused")'

Exit codes: 0 all can be done; 2 something would be refused, or is unreadable.
`

const statusHelp = `injector status says of each Service whether all of its pods have the sidecar,
so that it may follow them.

Usage:

  injector status [-f FILE|DIR|-]...

Example:

  kubectl get pods,services -o json | injector status

Exit codes: 0 all may; 1 one must wait, or no Service finds a pod with a
sidecar; 2 unreadable.
`

const serveHelp = `injector serve answers an API server's reviews as a webhook, which injects pods
when they are made. The folder deploy has the manifests for it.

Usage:

  injector serve [flags] [options]

It looks for its certificate in a folder, or with -self-managed makes, renews
and publishes one. Options apply to pods that do not set them.
A pod must not set the options in --lock. After SIGTERM, SIGINT or SIGHUP, it
completes the open reviews and exits. A second signal stops it immediately.

It listens on these ports:

  8443  reviews, HTTPS
  8080  /metrics, /healthz and /readyz, HTTP

Examples:

  In a cluster, with a certificate of its own making:
    injector serve -self-managed --image registry.example/queue-proxy:1

  With a certificate of others, and images that no pod may change:
    injector serve -cert-dir /certs --lock=image,settings \
      --image registry.example/queue-proxy:1

Exit codes: 0 it was ended; 2 it could not start, or go on.
`

const policyHelp = `injector policy prints a MutatingAdmissionPolicy that injects without a server
(Kubernetes 1.36), and its bindings.

Usage:

  injector policy [options]

Example:

  injector policy --image registry.example/queue-proxy:1 --concurrency 4 |
    kubectl apply -f -

Exit codes: 0 done; 2 an option is bad, or cannot be said in a policy.
`

const optionsHelp = `injector options lists the options: flag, variable of the environment,
annotation, and what each does.

Usage:

  injector options

Example:

  injector options | grep -A 2 concurrency
`

const completionHelp = `injector completion prints the script by which a shell completes commands and
flags.

Usage:

  injector completion bash|zsh|fish

Examples:

  source <(injector completion bash)

  injector completion fish | source
`

const versionHelp = `injector version prints the version, and the commit that it was built from.

Usage:

  injector version

Example:

  injector version
`
