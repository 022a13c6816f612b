package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queue-proxy/queue-proxy/cmd/injector/internal/check"
	"github.com/queue-proxy/queue-proxy/cmd/internal/cli"
	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// A kubectl sends requests to the API server that a kubeconfig specifies. It runs kubectl instead
// of linking k8s.io/client-go, which would make the injector 13 MB larger and add its dependencies
// to the process that reviews the pods of a cluster. kubectl supports all authentication plugins.
type kubectl struct {
	flags   []string
	timeout time.Duration // timeout of a request
}

// Get implements [check.API].
func (k *kubectl) Get(ctx context.Context, path string) ([]byte, error) {
	return k.run(ctx, nil, "get", "--raw", path)
}

// Create implements [check.API].
func (k *kubectl) Create(ctx context.Context, path string, object []byte) ([]byte, error) {
	return k.run(ctx, object, "create", "--raw", path, "-f", "-")
}

func (k *kubectl) run(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "kubectl", append(args, k.flags...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.WaitDelay = time.Second // do not wait longer for an authentication plugin that keeps the standard error open
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("kubectl %s: timeout after %v", args[2], k.timeout)
	case errors.Is(err, exec.ErrNotFound):
		return nil, errors.New("kubectl is not in the PATH")
	}
	return nil, errors.New(cmp.Or(strings.TrimSpace(stderr.String()), "kubectl: "+err.Error()))
}

func (c *command) checkCommand() *cobra.Command {
	k := &kubectl{}
	options := check.Options{Version: version}
	var output, kubeconfig, kubeContext string
	cmd := &cobra.Command{
		Use: "check", Short: "Check an installation of the injector in a cluster",
		Long: `Check the API server and the permissions of the user, the webhook or the policy, the certificate of
the webhook, the labels of the namespaces, the pods and Services, and the versions.

The command runs kubectl to read the cluster, and changes nothing. By default, it checks the pods
and Services of the namespaces that are selected for the injection.

A warning does not affect the exit code.

Exit codes:
  0  No check failed.
  1  At least one check failed.
  2  The API server is not reachable, or another error occurred.
`,
		Example: `  injector check
  injector check -n shop -o json | jq -r '.categories[].checks[] | select(.result == "error")'`,
		Args: cli.NoArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, flag := range [][2]string{{"--kubeconfig", kubeconfig}, {"--context", kubeContext}} {
				if flag[1] != "" {
					k.flags = append(k.flags, flag[0]+"="+flag[1])
				}
			}
			options.Now = time.Now()
			report, err := check.Run(cmd.Context(), k, options)
			if err != nil {
				return err
			}
			if !report.Success {
				c.code = differs
			}
			if output == "json" {
				return message.JSON(c.stdout, report)
			}
			c.printReport(report)
			return nil
		},
	}
	flags := cmd.Flags()
	cli.Choice(cmd, &output, "output", "o", "format of the output", "text", "json")
	flags.StringVarP(&options.Namespace, "namespace", "n", "", "check only pods and Services in this `namespace`")
	flags.BoolVarP(&options.Everywhere, "all-namespaces", "A", false, "check pods and Services in all namespaces")
	flags.StringVar(&options.Configuration, "configuration", "queue-proxy-injector", "`name` of the MutatingWebhookConfiguration and the MutatingAdmissionPolicy")
	flags.StringVar(&options.Secret, "secret", "queue-proxy-injector-certificate", "`name` of the Secret with the certificate of the webhook")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "`file` that contains the kubeconfig")
	flags.StringVar(&kubeContext, "context", "", "`name` of the kubeconfig context")
	cli.Duration(flags, &k.timeout, "timeout", 30*time.Second, 0, "time limit for each request to the API server")
	cli.Exclusive(cmd, "namespace", "all-namespaces")
	return cmd
}

// printReport prints the results of the checks as text.
func (c *command) printReport(report *check.Report) {
	marks := map[check.Result]string{check.Success: "√", check.Warning: "‼", check.Error: "×"}
	for _, category := range report.Categories {
		printLine(c.stdout, "%s", category.Name)
		printLine(c.stdout, "%s", strings.Repeat("-", len(category.Name)))
		for _, one := range category.Checks {
			printLine(c.stdout, "%s %s", marks[one.Result], one.Description)
			for _, problem := range one.Problems {
				printLine(c.stdout, "    %s", problem)
			}
			if one.Hint != "" {
				printLine(c.stdout, "    hint: %s", one.Hint)
			}
		}
		fmt.Fprintln(c.stdout)
	}
	result := marks[check.Success]
	if !report.Success {
		result = marks[check.Error]
	}
	printLine(c.stdout, "Status check results are %s", result)
}
