package main

import (
	"cmp"

	"github.com/queue-proxy/queue-proxy/pkg/manual"
)

// pages are what the manual pages are made of.
func pages() manual.Program {
	return manual.Program{Name: "queue-proxy", Version: version, Commands: commandNames(), Help: help}
}

// help is the text about a command, or about all of them.
func help(command string) string {
	text := map[string]string{
		"serve": serveHelp, "why": whyHelp, "config": configHelp, "version": versionHelp, "completion": completionHelp,
	}[command]
	return cmp.Or(text, overview)
}

const overview = `queue-proxy is a sidecar that stands in front of one app, in the app's pod.
It passes on as many requests at once as the app can take and queues the rest.
It asks the app whether it is ready, and when the pod ends it finishes what has
begun.

Usage:

  queue-proxy [serve]           serve until the pod ends
  queue-proxy why [-o json]     say whether the pod is ready, and why not
  queue-proxy config [-o json]  print the settings in force
  queue-proxy version           print the version; also -v, -version
  queue-proxy completion SHELL  print what completes commands in bash, zsh, fish
  queue-proxy help [COMMAND]    print this, or more on a command; also -h, -help

Settings are environment variables, and each has a default. To list them, run
'queue-proxy config'; docs/configuration.md explains them.

Examples:

  Serve an app that listens on port 3000 and takes ten requests at once:
    USER_PORT=3000 CONTAINER_CONCURRENCY=10 queue-proxy

  Find out why a pod is not ready; in the image the program is /ko-app/queue:
    kubectl exec POD -c queue-proxy -- /ko-app/queue why

Flags, for the exec probes that Knative 0.8 to 0.25 puts on this container:

  -probe-period TIME   ask the sidecar that runs here until it is ready, but no
  -probe-timeout TIME  longer than TIME (2, 2s; 0 is 10s); exit with 0 or 1

Exit codes: 0 done; 1 not ready, or it could not be done; 2 bad command line.
`

const serveHelp = `queue-proxy serve takes requests for the app until the pod ends. It is what the
program does without a command.

Usage:

  queue-proxy [serve]

It listens on these ports, which settings can change:

  8012  requests, HTTP/1.1 and HTTP/2
  8112  requests over TLS, once there is a certificate
  8022  preStop hooks
  8008  the status page, for this host alone
  9090  statistics for the autoscaler
  9091  metrics

SIGTERM, SIGINT and SIGHUP start the drain: what has begun is finished, and the
exit code is 0. A second signal ends the process at once, with exit code 1. If
it cannot start, that is 1 too; standard error has a line for each thing that is
wrong.

Example:

  An app on port 3000 that takes one request at a time, while 20 may wait:
    USER_PORT=3000 CONTAINER_CONCURRENCY=1 QUEUE_DEPTH=20 queue-proxy serve
`

const whyHelp = `queue-proxy why asks the sidecar that runs in this pod whether the pod is
ready. If it is not ready, the output contains the reason and the result of each
probe.

Usage:

  queue-proxy why [-o text|json]

  -o text|json  what to print; text is the default

The command connects to STATUS_PORT (8008), which it reads from the environment.
The sidecar runs the probes again. The command takes at most 5 seconds.

Exit codes: 0 if the pod is ready; 1 if it is not ready or the sidecar does not
respond.

Examples:

  kubectl exec POD -c queue-proxy -- /ko-app/queue why
  kubectl exec POD -c queue-proxy -- /ko-app/queue why -o json | jq .reason
`

const configHelp = `queue-proxy config prints each setting in force and where it came from: the
environment, a default, or other settings. Warnings follow, about variables
that look misspelt and values that have no effect. Secrets are not shown.

Usage:

  queue-proxy config [-o text|json]

  -o text|json  what to print; text is the default

Exit codes: 0; 1 if a setting is bad, with a line for each on standard error.

Examples:

  kubectl exec POD -c queue-proxy -- /ko-app/queue config

  Only what the environment says:
    queue-proxy config -o json | jq '.settings[] | select(.from)'

  Try settings before a pod has them:
    CONTAINER_CONCURRENCY=4 QUEUE_TIMEOUT_SECONDS=30 queue-proxy config
`

const versionHelp = `queue-proxy version prints the version, and the commit that it was built from.

Usage:

  queue-proxy version
`

const completionHelp = `queue-proxy completion prints the script by which a shell completes commands
and flags.

Usage:

  queue-proxy completion bash|zsh|fish

Examples:

  source <(queue-proxy completion bash)

  queue-proxy completion fish | source
`
