package inject

import (
	"fmt"
	"slices"
	"strings"
)

// This file finds the ports that containers probably use without declaring them. If the
// sidecar listened on such a port, the program that binds the port last would exit.

// scrapeAnnotations are pod annotations that contain the metrics port.
var scrapeAnnotations = []string{"prometheus.io/port", "k8s.grafana.com/metrics.portNumber"}

// imageListens is the kind of rows for programs that listen on a port by default.
const imageListens = "listens"

// mentionedPorts returns the default ports of the sidecar that occur in the pod: in an argument, a
// variable, a metrics annotation, or the row of an image in databases.txt. The values describe
// where the number was found. If the number is not a port, the only effect is that the sidecar uses
// another port.
func (in *injection) mentionedPorts() map[int32]string {
	numbers, all := map[string]int32{}, map[int32]string{}
	for _, u := range defaultPorts {
		if in.options.get(u.option) == "" {
			numbers[decimal(u.number)], numbers[decimal(u.number+portOffset)] = u.number, u.number+portOffset
		}
	}
	read := func(container, text, format string, args ...any) {
		for number := range numbersIn(text) {
			n := numbers[number]
			isSidecar := (n == defaultPorts[0].number || n == defaultPorts[1].number) && in.forwards(container, n) // the container is a proxy in front of the sidecar
			if n != 0 && all[n] == "" && !isSidecar {
				all[n] = fmt.Sprintf(format, args...)
			}
		}
	}
	for _, key := range scrapeAnnotations {
		read("", in.meta.Annotations[key], "the annotation %s", key)
	}
	for _, c := range containersAtRuntime(in.object) {
		name := Text(c, "name")
		for _, line := range commandLine(c) {
			read(name, line, "an argument of container %s", name)
		}
		for _, v := range listAt(c, "env") {
			read(name, Text(v, "value"), "variable %.60s of container %s", Text(v, "name"), name)
		}
		for _, r := range images {
			if len(r.ports) > 0 && r.image.MatchString(Text(c, "image")) {
				read(name, fmt.Sprint(r.ports), "the image of container %s", name)
			}
		}
	}
	return all
}

// mentionedPortsCEL returns an expression that is false if mentionedPorts contains one of the given ports and
// no container declares that port.
func mentionedPortsCEL(ports []string) string {
	const before, after = `(^|[^0-9])`, `([^0-9]|$)`
	byImage := ""
	for _, port := range ports {
		var patterns []string
		for _, r := range images {
			if slices.ContainsFunc(r.ports, func(n int32) bool { return decimal(n) == port }) {
				patterns = append(patterns, r.pattern)
			}
		}
		if patterns != nil {
			byImage += fmt.Sprintf("\n    && (%s in taken || !%s.exists(c, %s))", port, stay, matchesCEL("c.?image.orValue('')", strings.Join(patterns, "|")))
		}
	}
	return boundedTextsCEL(fmt.Sprintf(`!%[1]s
        || ![%[2]s].exists(n, !(n in taken) && text.matches('%[3]s' + string(n) + '%[4]s'))`,
		matchesCEL("text", before+"("+strings.Join(ports, "|")+")"+after), strings.Join(ports, ", "), before, after)) + byImage
}

// boundedTextsCEL returns a CEL expression that evaluates a condition. In the condition, the
// variable text contains all arguments, variables and metrics annotations of the pod. The
// expression is false if text exceeds the limits below, which bound the cost of the condition.
func boundedTextsCEL(condition string) string {
	const (
		mostTexts = 1000  // maximum number of arguments and variables
		mostBytes = 30000 // maximum total length of the arguments and variables in bytes
	)
	return fmt.Sprintf(`%[1]s.map(c, size(c.?command.orValue([])) + size(c.?args.orValue([])) + size(c.?env.orValue([]))).sum() <= %[2]d
    && [(%[1]s.map(c, c.?command.orValue([]) + c.?args.orValue([]) + c.?env.orValue([]).map(e, e.name + '=' + e.?value.orValue('')))
      + [['%[3]s'].map(key, object.metadata.?annotations[?key].orValue(''))]).flatten()].all(texts,
      texts.map(text, size(text)).sum() <= %[4]d
      && [texts.join(' ')].all(text, %[5]s))`, stay, mostTexts, strings.Join(scrapeAnnotations, "', '"), mostBytes, condition)
}
