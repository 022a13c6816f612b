package inject

import (
	"regexp"
)

var (
	reference   = regexp.MustCompile(`\$\(([A-Za-z0-9_.-]+)\)`)
	ofPeers     = regexp.MustCompile(`(?i)advertise|announce`) // names of settings for the address that an application announces to its peers
	podIPFields = map[string]bool{"status.podIP": true, "status.podIPs": true}
)

// warnOfPodAddress adds a warning if the command line or the environment of the application
// contains the pod's address. The sidecar connects to localhost, so it cannot reach an
// application that listens only on this address.
func (in *injection) warnOfPodAddress() error {
	app := At(in.object, "spec", "containers", in.app.Name)
	addresses := map[string]bool{} // names of the variables that contain the pod's address
	for _, v := range listAt(app, "env") {
		if podIPFields[Text(At(v, "valueFrom", "fieldRef"), "fieldPath")] {
			addresses[Text(v, "name")] = true
		}
	}
	if len(addresses) == 0 {
		return nil
	}
	if where, name := referenceTo(app, addresses); where != "" {
		in.warn("container %s: %s contains $(%s), the address of the pod, but the application must also listen on the loopback address",
			in.app.Name, where, name)
	}
	return nil
}

// referenceTo returns the first container field that refers to one of the variables, and the
// variable's name. where is "" if there is no such field.
func referenceTo(container any, variables map[string]bool) (where, name string) {
	find := func(text string) string {
		if ofPeers.MatchString(text) {
			return ""
		}
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			if variables[m[1]] {
				return m[1]
			}
		}
		return ""
	}
	for _, list := range []string{"command", "args"} {
		for _, word := range listAt(container, list) {
			line, _ := word.(string)
			if name := find(line); name != "" {
				return list, name
			}
		}
	}
	for _, v := range listAt(container, "env") {
		if name := find(Text(v, "name") + "=" + Text(v, "value")); name != "" {
			return "env " + Text(v, "name"), name
		}
	}
	return "", ""
}
