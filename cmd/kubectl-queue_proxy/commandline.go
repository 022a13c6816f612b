package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/queue-proxy/queue-proxy/cmd/internal/cli"
	"github.com/queue-proxy/queue-proxy/pkg/plugin"
)

// commandLine contains the flags of top and why.
type commandLine struct {
	kube *genericclioptions.ConfigFlags // flags of kubectl for the kubeconfig, the context, the namespace and the credentials

	container string
	output    string

	// The following fields are the flags of top.
	everywhere bool
	selector   string
	filter     string
	by         string // byPod or byWorkload
	sort       string
	once       bool
	interval   time.Duration
	window     time.Duration
}

// Defaults and minimums of flags. The minimums bound the load on the API server and the
// memory for each sidecar.
const (
	defaultInterval, minInterval = 2 * time.Second, time.Second
	defaultWindow, maxWindow     = 15 * time.Second, 5 * time.Minute
)

// Values of --by.
const (
	byPod      = "pod"
	byWorkload = "workload"
)

// completionTime is the time limit for the completion of pod names.
const completionTime = 2 * time.Second

// kubectlCompletion is the file that kubectl runs to complete the arguments of the plugin.
const kubectlCompletion = `#!/bin/sh
# Save this file as kubectl_complete-queue_proxy in the PATH, and make it executable.
exec kubectl-queue_proxy __complete "$@"
`

// root returns the command line of the plugin.
func (p *program) root() *cobra.Command {
	line := &commandLine{kube: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use: "kubectl-queue_proxy", Short: "Show the queue-proxy sidecars of a cluster",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl queue-proxy"},
		Long: `Show the state, the load, the response times and the last failures of the queue-proxy sidecars of a
cluster.

The command top requires permission to list pods and to get pods/proxy. The command why requires
permission to create pods/exec. The plugin does not change the cluster.

Exit codes:
  0  The command succeeded.
  1  The pod is not ready, or an error occurred.
  2  The command line is invalid.
`,
		Example: `  kubectl queue-proxy top -n shop
  kubectl queue-proxy why web-5d8f7c9b6-x2x7k -n shop`,
	}
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.AddCommand(p.topCommand(line), p.whyCommand(line))
	line.kube.AddFlags(root.PersistentFlags())
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.AddCommand(&cobra.Command{
			Use: "kubectl", Short: "Generate the program that kubectl runs to complete the plugin's arguments",
			Example: `  kubectl queue-proxy completion kubectl >~/.local/bin/kubectl_complete-queue_proxy
  chmod +x ~/.local/bin/kubectl_complete-queue_proxy`,
			Args: cli.NoArguments(""),
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := io.WriteString(cmd.OutOrStdout(), kubectlCompletion)
				return err
			},
		})
	}
	return root
}

// connect returns a client for the API server, and the namespace from the flags or the
// kubeconfig.
func (line *commandLine) connect() (*plugin.Client, string, error) {
	if err := line.requireServer(); err != nil {
		return nil, "", err
	}
	config, err := line.kube.ToRESTConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	namespace, _, err := line.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, "", err
	}
	client, err := plugin.New(config)
	return client, namespace, err
}

// requireServer returns an error if no flag, kubeconfig or service account contains the address of the API
// server. In this case, package clientcmd would connect to localhost:8080.
func (line *commandLine) requireServer() error {
	loader := line.kube.ToRawKubeConfigLoader()
	raw, err := loader.RawConfig()
	switch {
	case errors.Is(err, fs.ErrNotExist): // the file of --kubeconfig
	case err != nil:
		return fmt.Errorf("kubeconfig: %w", err)
	case !api.IsConfigEmpty(&raw) || *line.kube.APIServer != "":
		return nil
	default:
		if _, err := rest.InClusterConfig(); err == nil {
			return nil
		}
	}
	files := strings.Join(loader.ConfigAccess().GetLoadingPrecedence(), ", ")
	return fmt.Errorf("the kubeconfig %s is missing or empty; use --kubeconfig or KUBECONFIG to select another file", files)
}

// podNames returns the names of the pods with a sidecar. It returns no names if an error occurs.
func (line *commandLine) podNames(ctx context.Context) []string {
	client, namespace, err := line.connect()
	if err != nil {
		return nil
	}
	sidecars, _, _ := client.Sidecars(ctx, plugin.Selection{Namespace: namespace, Container: line.container})
	var names []string
	for _, s := range sidecars {
		names = append(names, s.Pod)
	}
	return names
}

func (p *program) topCommand(line *commandLine) *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Show all sidecars of a namespace",
		Long: `Show all sidecars of a namespace. The columns contain the readiness, the running and waiting
requests, the concurrency limit, the requests per second, the 99th percentile of the response time,
and the last failure.

If the output is a terminal, it is refreshed until q or Ctrl-C is pressed. The arrow keys scroll, s
changes the sort order, w switches between pods and workloads, / filters rows by text, and ? shows
all keys. The line below the table contains the note of the selected row. If the output is not a
terminal, it is printed once. Use --once or -o json to print it once on a terminal.

With --by workload, each row contains the sums of all pods of a workload, such as deployment/web. P99
is the highest of its pods.

Red means not ready; yellow means draining or unknown. Set NO_COLOR=1 in the environment to disable
colors.
`,
		Example: `  kubectl queue-proxy top -n shop -l app=web --sort p99

  # Show the pods that contain waiting requests.
  kubectl queue-proxy top -A -o json | jq -r '.sidecars[] | select(.waiting > 0).pod'`,
		Args: cli.NoArguments(""),
		PreRunE: func(*cobra.Command, []string) error {
			switch {
			case line.everywhere && *line.kube.Namespace != "":
				return fmt.Errorf("--all-namespaces and --namespace cannot be used together")
			case line.window < line.interval || line.window > maxWindow:
				return fmt.Errorf("--window: %q: must be from %v (--interval) to %v", line.window, line.interval, maxWindow)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.top(cmd.Context(), *line)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&line.everywhere, "all-namespaces", "A", false, "show the sidecars of all namespaces")
	flags.StringVarP(&line.selector, "selector", "l", "", "label selector, such as app=web,tier!=db")
	flags.StringVarP(&line.container, "container", "c", "queue-proxy", "container of the sidecar")
	cli.Choice(cmd, &line.output, "output", "o", "format of the output; json is printed only once", "text", "json")
	cli.Choice(cmd, &line.sort, "sort", "", "sort order; the highest value, the latest failure or the worst state is shown first", plugin.Keys()...)
	cli.Choice(cmd, &line.by, "by", "", "objects in the rows", byPod, byWorkload)
	flags.StringVar(&line.filter, "filter", "", "show only rows that contain this string")
	flags.BoolVar(&line.once, "once", false, "print once, as plain text")
	cli.Duration(flags, &line.interval, "interval", defaultInterval, minInterval, "interval of the requests to a sidecar (minimum 1s)")
	cli.Duration(flags, &line.window, "window", defaultWindow, 0, "time window for REQ/S and P99 (maximum 5m)")
	return cmd
}

func (p *program) whyCommand(line *commandLine) *cobra.Command {
	cmd := &cobra.Command{
		Use: "why POD", Short: "Print the readiness of a pod and the reason",
		Long: `Print the readiness of a pod, the reason, and the result of each readiness probe. The command runs
'queue-proxy why' in the container of the sidecar. If POD has the form TYPE/NAME, for example
deployment/web, a pod of this object is selected.

The exit code is 0 if the pod is ready.
`,
		Example: `  kubectl queue-proxy why web-5d8f7c9b6-x2x7k
  kubectl queue-proxy why deployment/web -n shop -o json | jq .reason`,
		Args: cli.OneArgument("the name of a pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.why(cmd.Context(), args[0], line)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
			defer cancel()
			return line.podNames(ctx), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().StringVarP(&line.container, "container", "c", "queue-proxy", "container of the sidecar")
	cli.Choice(cmd, &line.output, "output", "o", "format of the output", "text", "json")
	return cmd
}
