package inject

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/queue-proxy/queue-proxy/pkg/config"
	"github.com/queue-proxy/queue-proxy/pkg/message"
)

// Prefix is the prefix of the injector's annotations and labels.
const Prefix = "queue-proxy.dev/"

// StatusAnnotation is the annotation of injected objects that contains the changes with
// which [Uninject] reverts the injection.
const StatusAnnotation = Prefix + statusKey

// An Option is a setting of an injection. It can be set by an annotation of the pod
// (queue-proxy.dev/Name), by a flag (--Name), or in the environment of the injector ([Option.Env]).
// Annotations override flags, and flags override the environment. The lock option lists the options
// that annotations cannot set.
type Option struct {
	Name    string
	Aliases []string // equivalent annotations of Knative; they have lower precedence than Annotation
	Default string   // "" if there is no default
	Text    string   // a description in one or more sentences, in Markdown

	operator bool                    // only the operator can set the option; annotations cannot
	variable string                  // environment variable of the sidecar that defines the syntax and the default, or ""
	words    []string                // the allowed values, or nil if there is no fixed set of values or variable defines them
	check    func(text string) error // nil if all strings are valid, or if words or variable define the syntax
}

// Env returns the name of the injector's environment variable that sets the option.
func (o Option) Env() string {
	return "INJECTOR_" + strings.ToUpper(strings.ReplaceAll(o.Name, "-", "_"))
}

// Annotation returns the key of the annotation that sets the option, or "" if there is none.
func (o Option) Annotation() string {
	if o.operator {
		return ""
	}
	return Prefix + o.Name
}

// Variable returns the name of the sidecar's environment variable that the option sets, or "" if
// there is none.
func (o Option) Variable() string { return o.variable }

// Words returns the allowed values of the option, or nil if they are not a fixed set of words.
func (o Option) Words() []string {
	if o.words != nil || o.variable == "" {
		return o.words
	}
	c := defaults()
	return c.Words(o.variable)
}

// Names of the options that the code uses.
const (
	injectOption    = "inject"
	containerOption = "container"
	portOption      = "port"
	sureOption      = "sure"
	modeOption      = "mode"
	imageOption     = "image"
	pullOption      = "image-pull-policy"
	timeoutOption   = "request-timeout"
	deadlineOption  = "drain-deadline"
	drainMinOption  = "drain-min"
	duplexOption    = "full-duplex"
	settingsOption  = "settings"
	metricsOption   = "metrics-annotations"
	percentOption   = "resource-percentage"
	lockOption      = "lock"

	statusKey = "status" // suffix of StatusAnnotation
)

// anyConfidence is the value of the sure option that accepts a port with low confidence.
const anyConfidence = "any"

// Values of the mode option.
const (
	modeSidecar = "sidecar" // a regular container
	modeNative  = "native"  // a restartable init container, since Kubernetes 1.29
)

// Table returns all options, in the order of the tables in docs/injection.md. Callers must not
// modify the result.
func Table() []Option { return table }

// table is computed once, because config uses reflection to find the names of its settings.
var table = allOptions()

func allOptions() []Option {
	const knative = "queue.sidecar.serving.knative.dev/"
	c := defaults()
	booleans := []string{"true", "false"} // isBoolean also accepts other forms
	return []Option{
		{Name: injectOption, Default: "true", words: booleans, check: isBoolean,
			Text: "With `false`, the pod is not injected. The webhook uses the label."},
		{Name: containerOption,
			Text: "The container that receives the requests. Required if several containers are possible."},
		{Name: portOption, check: isPortOrName,
			Text: "The name or number of the port for requests. Required if several ports are possible, or if there is no evidence for HTTP."},
		{Name: sureOption, Default: anyConfidence, words: []string{string(High), anyConfidence},
			Text: "The required confidence of the port. `high` refuses pods with low confidence."},
		{Name: modeOption, Default: modeSidecar, words: []string{modeSidecar, modeNative},
			Text: "`sidecar` adds a container. `native` adds an init container that keeps running (Kubernetes 1.29), which jobs require."},
		{Name: imageOption, Default: "queue-proxy:dev", check: isImage,
			Text: "The image of the sidecar. `inject`, `serve` and `policy` require an image."},
		{Name: pullOption, words: []string{"Always", "IfNotPresent", "Never"},
			Text: "The pull policy of the image."},

		{Name: "concurrency", variable: c.Concurrency.Name(), Text: "The maximum number of concurrent requests to the application; 0 means no limit."},
		{Name: "queue-depth", variable: c.QueueDepth.Name(), Text: "The maximum number of queued requests."},
		{Name: "queue-timeout", variable: c.QueueTimeout.Name(), Text: "The maximum time of a request in the queue."},
		{Name: timeoutOption, variable: c.RequestTimeout.Name(), Text: "The maximum duration of a request. It can extend the grace period of the pod."},
		{Name: "response-start-timeout", variable: c.ResponseStartTimeout.Name(), Text: "The maximum time until the first byte of the response."},
		{Name: "idle-timeout", variable: c.IdleTimeout.Name(), Text: "The maximum time without data in either direction."},
		{Name: deadlineOption, variable: c.DrainDeadline.Name(), Text: "The maximum duration of the drain. The default depends on the grace period and the other options."},
		{Name: "drain-quiet-period", variable: c.DrainQuietPeriod.Name(), Text: "The time without new requests after which the drain can end."},
		{Name: drainMinOption, variable: c.DrainMin.Name(), Text: "The minimum duration of the drain. The default is the duration of a preStop hook that only sleeps."},
		{Name: "drain-streams", variable: c.DrainStreams.Name(), Text: "The handling of WebSockets, event streams and gRPC streams during the drain. With `end`, the application closes the streams after SIGTERM. With `wait`, the drain waits until the streams are closed."},
		{Name: "exclude-paths", variable: c.ExcludePaths.Name(), Text: "Paths that are not counted as load."},
		{Name: "exclude-user-agents", variable: c.ExcludeUserAgents.Name(), Text: "Prefixes of User-Agent that are not counted as load."},
		{Name: duplexOption, Aliases: []string{"features.knative.dev/http-full-duplex"}, variable: c.FullDuplex.Name(),
			Text: "Allow an HTTP/1.1 response to begin before the request is complete."},
		{Name: "log-level", variable: c.LoggingLevel.Name(), check: c.LoggingLevel.Check, Text: "The minimum level of log messages."},
		{Name: settingsOption,
			Text: "Other settings of the sidecar, as lines of `NAME=value`."},

		{Name: "serving-port", check: isPort, variable: c.Port.Name(), Text: "The port of the sidecar for requests."},
		{Name: "tls-port", check: isPort, variable: c.TLSPort.Name(), Text: "The port for requests over TLS."},
		{Name: "admin-port", check: isPort, variable: c.AdminPort.Name(), Text: "The port for preStop hooks."},
		{Name: "autoscaler-port", check: isPort, variable: c.AutoscalerPort.Name(), Text: "The port for the statistics that autoscalers read."},
		{Name: "metrics-port", check: isPort, variable: c.MetricsPort.Name(), Text: "The port for metrics."},
		{Name: "status-port", check: isPort, variable: c.StatusPort.Name(), Text: "The port of the status page, on the loopback address."},

		{Name: "cpu-request", Aliases: []string{knative + "cpu-resource-request"}, Default: "25m", check: isQuantity, Text: "The CPU request of the sidecar."},
		{Name: "cpu-limit", Aliases: []string{knative + "cpu-resource-limit"}, check: isQuantity, Text: "The CPU limit of the sidecar."},
		{Name: "memory-request", Aliases: []string{knative + "memory-resource-request"}, Default: "32Mi", check: isQuantity, Text: "The memory request of the sidecar."},
		{Name: "memory-limit", Aliases: []string{knative + "memory-resource-limit"}, check: isQuantity, Text: "The memory limit of the sidecar."},
		{Name: "ephemeral-storage-request", Aliases: []string{knative + "ephemeral-storage-resource-request"}, check: isQuantity, Text: "The request for ephemeral storage."},
		{Name: "ephemeral-storage-limit", Aliases: []string{knative + "ephemeral-storage-resource-limit"}, check: isQuantity, Text: "The limit for ephemeral storage."},
		{Name: percentOption, Aliases: []string{knative + "resource-percentage", knative + "resourcePercentage"}, check: isPercentage,
			Text: "The resources of the sidecar as a percentage of the resources of the application, within the limits of Knative. The other resource options override it."},

		{Name: metricsOption, Default: "true", words: booleans, check: isBoolean,
			Text: "Add the missing `prometheus.io/` annotations."},

		{Name: lockOption, operator: true,
			Text: "Options that annotations cannot set, separated by commas, with the groups `ports` and `resources`. An annotation cannot set `lock`."},
	}
}

// Options maps the Name of an Option to its value. An option that is missing or empty is not set. A
// nil map is valid and contains no options.
type Options map[string]string

// Set sets an option. The error for an invalid value contains the value, but not the name of the option,
// because the user knows it as a flag or a variable. The error for an unknown name can contain a
// suggestion.
func (o Options) Set(name, text string) error {
	option, ok := find(name)
	if !ok {
		return unknown("option", name, optionNames())
	}
	if err := option.validate(text); err != nil {
		return err
	}
	o[name] = text
	return nil
}

// FromEnv returns the options in the environment of the injector. environ has the format of
// [os.Environ]. Variables without the prefix INJECTOR_ are ignored. An unknown variable with this
// prefix is an error.
func FromEnv(environ []string) (Options, error) {
	o := Options{}
	for _, line := range environ {
		name, text, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, "INJECTOR_") || text == "" || config.IsServiceLink(name, text) {
			continue
		}
		i := slices.IndexFunc(table, func(t Option) bool { return t.Env() == name })
		if i < 0 {
			return nil, unknown("variable", name, namesIn(Option.Env))
		}
		if err := o.Set(table[i].Name, text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return o, nil
}

// with returns a copy of o with the options in the annotations of a pod. Annotations override o. problems contains
// one error for each invalid annotation, with the key of the annotation.
func (o Options) with(annotations map[string]string) (_ Options, problems []error) {
	all := Options{}
	maps.Copy(all, o)
	for _, option := range table {
		for _, key := range option.Annotations() {
			value := annotations[key]
			if value == "" {
				continue
			}
			if option.Name == duplexOption { // the annotation of Knative has different values
				value = strings.NewReplacer("Enabled", "true", "Disabled", "false").Replace(value)
			}
			if err := option.validate(value); err != nil {
				problems = append(problems, fmt.Errorf("annotation %s: %w", key, err))
			}
			all[option.Name] = value
			break
		}
		if err := option.validate(o[option.Name]); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", option.Name, err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ours := strings.CutPrefix(key, Prefix)
		if !ours || name == statusKey {
			continue
		}
		switch option, known := find(name); {
		case !known:
			problems = append(problems, unknown("annotation", key, namesIn(Option.Annotation)))
		case option.operator:
			problems = append(problems, fmt.Errorf("annotation %s: only the injector can set the option %s; remove the annotation", key, name))
		}
	}
	return all, problems
}

// Annotations returns the keys of all annotations that set the option, in order of precedence.
func (o Option) Annotations() []string {
	if o.operator {
		return nil
	}
	return append([]string{o.Annotation()}, o.Aliases...)
}

// locked returns the names of the options that annotations cannot set, in the order of Table.
func (o Options) locked() []string {
	var all []string
	names, _ := parseLock(o[lockOption]) // the value is valid, because the options have been validated
	for _, option := range table {
		if names[option.Name] {
			all = append(all, option.Name)
		}
	}
	return all
}

// lockedAnnotations returns an error for each annotation that sets a locked option.
func (o Options) lockedAnnotations(annotations map[string]string) (problems []error) {
	for _, name := range o.locked() {
		option, _ := find(name)
		for _, key := range option.Annotations() {
			if annotations[key] != "" {
				problems = append(problems, fmt.Errorf("annotation %s: the option %s is locked in the injector; remove the annotation", key, name))
			}
		}
	}
	return problems
}

// parseLock parses the value of the lock option.
func parseLock(text string) (map[string]bool, error) {
	all := map[string]bool{}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		option, known := find(name)
		switch {
		case name == "":
		case name == "ports":
			for _, u := range defaultPorts {
				all[u.option] = true
			}
		case name == "resources":
			all[percentOption] = true
			for _, o := range table {
				all[o.Name] = all[o.Name] || strings.HasSuffix(o.Name, "-request") || strings.HasSuffix(o.Name, "-limit")
			}
		case name == injectOption:
			return nil, fmt.Errorf("the option %s cannot be locked, because the API server does not send pods with the label value false to the webhook", injectOption)
		case option.operator:
			return nil, fmt.Errorf("the option %s cannot be locked, because annotations cannot set it", name)
		case !known:
			return nil, fmt.Errorf("%w; the groups are ports and resources, and 'injector options' lists the options", unknown("option", name, append(optionNames(), "ports", "resources")))
		default:
			all[name] = true
		}
	}
	return all, nil
}

// get returns the value of an option, or its default.
func (o Options) get(name string) string {
	option, _ := find(name)
	return cmp.Or(o[name], option.Default)
}

// validate returns an error if a value is invalid.
func (o Option) validate(text string) error {
	switch {
	case text == "":
		return nil
	case o.check != nil:
		return o.check(text)
	case o.words != nil:
		if !slices.Contains(o.words, text) {
			return fmt.Errorf("%q: must be one of %s", text, strings.Join(o.words, ", "))
		}
		return nil
	case o.Name == settingsOption:
		_, err := settings(text)
		return err
	case o.Name == lockOption:
		_, err := parseLock(text)
		return err
	case o.variable != "":
		// The variable is validated without the other options. Conflicts between options are
		// reported after all options are known.
		_, err := config.Read([]config.EnvVar{longDeadline(), {Name: o.variable, Value: text}})
		if all, is := errors.AsType[config.Errors](err); is {
			return errors.New(all[0].Problem)
		}
		return err
	}
	return nil
}

// longDeadline returns a drain deadline that does not conflict with the value of any
// other setting.
func longDeadline() config.EnvVar {
	return config.EnvVar{Name: variableOf(deadlineOption), Value: "10000h"}
}

// settings parses the value of the settings option.
func settings(text string) ([]config.EnvVar, error) {
	if text == "" {
		return nil, nil
	}
	var all []config.EnvVar
	known := map[string]bool{}
	c := defaults()
	for _, s := range c.Settings() {
		known[s.Name] = true
	}
	taken := map[string]string{
		c.UserPort.Name(): portOption, c.DrainEndpoint.Name(): modeOption,
		c.Probes.Name(): "", c.ProbeArray.Name(): "", c.OnKnative.Name(): "",
	}
	for _, option := range table {
		if option.variable != "" {
			taken[option.variable] = option.Name
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		option, isTaken := taken[name]
		switch {
		case !ok:
			return nil, fmt.Errorf("%q: must have the form NAME=value; the option contains the settings, not the name of a file", line)
		case isTaken && option == "":
			return nil, fmt.Errorf("the injector sets %s; remove the line", name)
		case isTaken:
			return nil, fmt.Errorf("%s is set with the option %s", name, option)
		case !known[name]:
			return nil, fmt.Errorf("%w; docs/configuration.md lists the settings", unknown("setting", name, slices.Collect(maps.Keys(known))))
		}
		all = append(all, config.EnvVar{Name: name, Value: value})
	}
	return all, nil
}

// Errors for the image of the sidecar. The images in deploy/ have a digest that consists of zeros.
var (
	errNoImage    = errors.New("the image is required, for example --image registry.example/queue-proxy:1")
	errZeroDigest = errors.New("the digest of the image contains only zeros; use the digest of a published image")
)

// CheckImage returns an error if the options contain no image, or an image whose digest consists of
// zeros.
func (o Options) CheckImage() error {
	switch {
	case o[imageOption] == "":
		return errNoImage
	case strings.HasSuffix(o[imageOption], "@sha256:"+strings.Repeat("0", 64)):
		return errZeroDigest
	}
	return nil
}

// Check returns an error if no pod can be injected with the options, because the image is missing or because
// options contradict each other. Set does not detect these problems, because it validates each option without
// the others.
func (o Options) Check() error {
	if err := o.CheckImage(); err != nil {
		return err
	}
	if out := injectSample(o); out.Verdict == Refused {
		return errors.New(out.Text)
	}
	return nil
}

// checkSidecarPorts returns an error if two ports of the sidecar have the same number.
func (o Options) checkSidecarPorts() error {
	seen := map[int]string{}
	for _, u := range defaultPorts {
		number, _ := strconv.Atoi(cmp.Or(o[u.option], decimal(u.number))) // the value is valid, because the options have been validated
		if other := seen[number]; other != "" {
			return fmt.Errorf("%s and %s have the same port number %d; specify a different port", other, u.option, number)
		}
		seen[number] = u.option
	}
	return nil
}

// injectSample injects a pod without annotations. The port of its only container is not a port of the sidecar.
func injectSample(opts Options) Outcome {
	free := 1
	for slices.ContainsFunc(defaultPorts, func(u defaultPort) bool { return opts[u.option] == strconv.Itoa(free) }) {
		free++
	}
	opts = maps.Clone(opts)
	delete(opts, containerOption)
	opts[portOption] = strconv.Itoa(free)
	return Inject(map[string]any{"metadata": map[string]any{}, "spec": map[string]any{
		"containers": []any{map[string]any{"name": "app"}},
	}}, opts)
}

// variableOf returns the environment variable that an option sets.
func variableOf(name string) string {
	option, _ := find(name)
	return option.variable
}

func find(name string) (Option, bool) {
	i := slices.IndexFunc(table, func(o Option) bool { return o.Name == name })
	if i < 0 {
		return Option{}, false
	}
	return table[i], true
}

func optionNames() []string { return namesIn(func(o Option) string { return o.Name }) }

// namesIn returns the result of f for each option, for example the environment variables if f is
// Option.Env. It omits empty results.
func namesIn(f func(Option) string) []string {
	var all []string
	for _, o := range table {
		if name := f(o); name != "" {
			all = append(all, name)
		}
	}
	return all
}

func isBoolean(text string) error {
	if _, err := strconv.ParseBool(text); err != nil {
		return fmt.Errorf("%q: must be true or false", text)
	}
	return nil
}

func isPort(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q: must be a port from 1 to 65535", text)
	}
	return nil
}

func isPortOrName(text string) error {
	if isPort(text) != nil && len(validation.IsValidPortName(text)) > 0 {
		return fmt.Errorf("%.64q: must be a port name or a port number from 1 to 65535", text)
	}
	return nil
}

// The parts of an image name, in the grammar of github.com/distribution/reference, which the
// kubelet uses.
const (
	imageLabel     = `[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?`
	imageDomain    = `(?:` + imageLabel + `(?:\.` + imageLabel + `)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?`
	imageComponent = `[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*`
	imageTag       = `[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}`
	imageDigest    = `(?:sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128})`
)

// imageReference matches the name of an image with an optional tag and digest.
var imageReference = regexp.MustCompile(`^(?:` + imageDomain + `/)?` + imageComponent + `(?:/` + imageComponent + `)*(?::` + imageTag + `)?(?:@` + imageDigest + `)?$`)

func isImage(text string) error {
	const longest = 1024 // maximum length in bytes; a name has at most 255 bytes, and a tag has at most 128
	if len(text) > longest || !imageReference.MatchString(text) {
		return fmt.Errorf("%q: must be the name of an image, such as registry.example/queue-proxy:1", message.Truncate(text, 100))
	}
	return nil
}

func isQuantity(text string) error {
	if checkQuantityLength(text) == nil {
		switch q, err := resource.ParseQuantity(text); {
		case err == nil && q.Sign() < 0:
			return fmt.Errorf("%q: must not be negative", text)
		case err == nil:
			return nil
		}
	}
	return fmt.Errorf("%.64q: must be a quantity such as 25m or 32Mi", text)
}

// checkQuantityLength returns an error for a long quantity. It is called before the quantity is
// parsed, because parsing an exponent of eight digits takes minutes.
func checkQuantityLength(text string) error {
	const most, maxExponentLength = 64, 3
	_, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if len(text) > most || len(exponent) > maxExponentLength {
		return fmt.Errorf("the quantity exceeds %d characters, or the exponent exceeds %d characters", most, maxExponentLength)
	}
	return nil
}

func isPercentage(text string) error {
	p, err := strconv.ParseFloat(text, 64)
	if err != nil || !(p > 0 && p <= 100) {
		return fmt.Errorf("%q: must be a positive number of at most 100", text)
	}
	return nil
}

// unknown returns the error for an unknown name. It suggests the most similar known name.
func unknown(what, name string, known []string) error {
	const maxEdits = 5   // maximum edit distance of a suggestion; larger distances give misleading suggestions
	const maxLength = 64 // maximum length of a known name in bytes
	if len(name) > maxLength {
		return fmt.Errorf("unknown %s %q", what, message.Truncate(name, maxLength))
	}
	slices.Sort(known)
	return message.Unknown(what, name, known, func(string) int { return maxEdits })
}
