package main

import (
	"cmp"

	"github.com/queue-proxy/queue-proxy/pkg/manual"
)

// pages are what the manual pages are made of.
func pages() manual.Program {
	return manual.Program{Name: calledAs, File: fileName, Version: version, Commands: commandNames(), Help: help}
}

// help is the text about a command, or about all of them.
func help(command string) string {
	text := map[string]string{
		"top": topHelp, "why": whyHelp, "version": versionHelp, "completion": completionHelp,
	}[command]
	return cmp.Or(text, overview)
}

const overview = `kubectl queue-proxy shows the queue-proxy sidecars of a cluster: which are
ready, how full they are, how fast requests are served, and why the last one
failed.

Usage:

  kubectl queue-proxy top               show all sidecars of a namespace, live
  kubectl queue-proxy why POD           say whether a pod is ready, and why not
  kubectl queue-proxy version           print the version; also -v, -version
  kubectl queue-proxy completion SHELL  print what completes commands
  kubectl queue-proxy help [COMMAND]    print this, or more on a command; also
                                        -h, -help

It runs kubectl, so kubeconfig, contexts and logins are kubectl's own. Nothing
is installed in the cluster. The rights that it needs are list of pods and get
of pods/proxy for top, and create of pods/exec for why.

Examples:

  kubectl queue-proxy top -n shop
  kubectl queue-proxy why web-5d8f7c9b6-x2x7k -n shop

Exit codes: 0 done; 1 not ready, or it could not be done; 2 bad command line.
`

const topHelp = `kubectl queue-proxy top shows all sidecars of a namespace: ready, running and
waiting requests, the limit, requests a second, the 99th percentile of their
duration, and why the last one failed.

On a terminal it refreshes in place until q or Ctrl-C; s sorts by another
column. In a pipe, with --once and with -o json it prints once, after two looks
at each sidecar.

Usage:

  kubectl queue-proxy top [flags]

  -n, --namespace NAME   the namespace; the default is that of the context
  -A, --all-namespaces   all namespaces
  -l, --selector LABELS  the pods with these labels, such as app=web,tier!=db
  --sort COLUMN          waiting (the default), running, requests, p99, limit,
                         failure, ready or name; highest, latest or worst first
  --once                 print once, as plain text
  -o, --output FORMAT    text, or json: print once, for programs
  --interval TIME        between two looks; 2s by default, 1s at least
  --window TIME          what REQ/S and P99 are of; 15s by default, 5m at most
  -c, --container NAME   the sidecar's container; queue-proxy by default

Of kubectl's flags it takes --context, --kubeconfig, --cluster, --user, --as and
--as-group.

Colours say what needs a look: red is not ready, yellow is ending or unknown.
NO_COLOR=1 in the environment turns them off.

Examples:

  kubectl queue-proxy top -n shop -l app=web --sort p99

  The pods in which somebody waits:
    kubectl queue-proxy top -A -o json |
      jq -r '.sidecars[] | select(.waiting > 0).pod'

Exit codes: 0 done; 1 the cluster does not answer, or refuses; 2 bad command
line.
`

const whyHelp = `kubectl queue-proxy why asks the sidecar of a pod whether the pod is ready. If
it is not, it prints the reason and what became of each probe.

Usage:

  kubectl queue-proxy why POD [flags]

  -n, --namespace NAME  the namespace; the default is that of the context
  -c, --container NAME  the sidecar's container; queue-proxy by default
  -o, --output FORMAT   text (the default) or json

Of kubectl's flags it takes --context, --kubeconfig, --cluster, --user, --as and
--as-group. POD may also be TYPE/NAME, such as deployment/web: one of its pods.

It runs 'queue-proxy why' in the container, as kubectl exec does.

Exit codes: 0 ready; 1 not ready, or nothing answers; 2 bad command line.

Examples:

  kubectl queue-proxy why web-5d8f7c9b6-x2x7k
  kubectl queue-proxy why deployment/web -n shop -o json | jq .reason
`

const versionHelp = `kubectl queue-proxy version prints the version of the plugin, and the commit
that it was built from.

Usage:

  kubectl queue-proxy version
`

const completionHelp = `kubectl queue-proxy completion prints the script by which a shell completes
commands and flags.

Usage:

  kubectl queue-proxy completion bash|zsh|fish|kubectl

The script of kubectl is a program that kubectl's own completion calls. It also
completes the names of pods. The others are for the program's file name,
kubectl-queue_proxy.

Examples:

  In a folder of the PATH, with kubectl's own completion on:
    kubectl queue-proxy completion kubectl >kubectl_complete-queue_proxy
    chmod +x kubectl_complete-queue_proxy

  source <(kubectl queue-proxy completion bash)
`
