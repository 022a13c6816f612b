package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/queue-proxy/queue-proxy/pkg/inject"
)

// This file finds related objects: the Services of a pod, the pods of a Service, and the
// quotas of a namespace. Because of the indexes below, the cost of finding the related
// objects of one object does not depend on the number of objects.

// found contains the related objects in some files.
type found struct {
	owners     []*Result       // objects with pods
	places     map[*Result]int // indexes in owners
	services   []service
	bySelector labelIndex                // indexes into services by the rarest label of each selector
	quotas     map[string][]inject.Quota // quotas by namespace
}

// A service is a Service and the directory of its file.
type service struct {
	*inject.Service

	namespace string
	dir       string
	selector  map[string]any
}

// findRelated finds the objects that relate to one another.
func findRelated(results []*Result) *found {
	f := &found{places: map[*Result]int{}, quotas: map[string][]inject.Quota{}}
	for _, r := range results {
		if r.facts.service != nil {
			f.services = append(f.services, service{r.facts.service, r.Namespace, filepath.Dir(r.File), r.facts.selector})
		}
		if r.facts.quota != nil {
			f.quotas[r.Namespace] = append(f.quotas[r.Namespace], *r.facts.quota)
		}
		if r.facts.hasPods {
			f.places[r] = len(f.owners)
			f.owners = append(f.owners, r)
		}
	}
	f.indexServices()
	return f
}

// selectorOf returns the selector of a Service.
func selectorOf(object map[string]any) map[string]any {
	selector, _ := inject.At(object, "spec", "selector").(map[string]any)
	return selector
}

// indexServices indexes each Service by the label of its selector that occurs in the fewest
// selectors. Other labels, such as the name of the release, are often in all selectors.
func (f *found) indexServices() {
	uses := map[[2]string]int{}
	for _, s := range f.services {
		for key := range s.selector {
			uses[[2]string{key, inject.Text(s.selector, key)}]++
		}
	}
	f.bySelector = labelIndex{}
	for i, s := range f.services {
		var rarest [2]string
		for key := range s.selector {
			label := [2]string{key, inject.Text(s.selector, key)}
			if rarest[0] == "" || cmp.Or(cmp.Compare(uses[label], uses[rarest]), cmp.Compare(key, rarest[0])) < 0 {
				rarest = label
			}
		}
		f.bySelector.add(s.namespace, rarest, i)
	}
}

// ports returns the ports of the Services that select the pods of each owner. Owners whose pods
// have the same labels, namespace and directory share a slice.
func (f *found) ports() [][]inject.ServicePort {
	all := make([][]inject.ServicePort, len(f.owners))
	known := map[string][]inject.ServicePort{}
	for i, r := range f.owners {
		key := textOf(r.facts.labels, r.Namespace, filepath.Dir(r.File))
		ports, has := known[key]
		if !has {
			ports = inject.CompactPorts(f.portsFor(r, r.facts.labels))
			known[key] = ports
		}
		all[i] = ports
	}
	return all
}

// textOf returns a string that is unique to the given labels or value.
func textOf(labels map[string]string, others ...string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, "%q=%q,", key, labels[key])
	}
	fmt.Fprintf(&b, "%q", others)
	return b.String()
}

// selecting returns the Services that select pods, in the order of the input.
func (f *found) selecting(namespace string, labels map[string]string) []service {
	var places []int
	for key, value := range labels {
		places = append(places, f.bySelector.near(namespace, [2]string{key, value})...)
	}
	slices.Sort(places)
	var all []service
	for _, i := range places {
		if len(f.services[i].PortsOf(namespace, labels)) > 0 {
			all = append(all, f.services[i])
		}
	}
	return all
}

// portsFor returns the ports of the Services that select the pods of a workload. If there are
// Services in several directories, only the Services in the nearest directory are used, because
// examples in one repository often have the same labels.
func (f *found) portsFor(r *Result, labels map[string]string) []inject.ServicePort {
	var ports []inject.ServicePort
	nearest := math.MaxInt
	for _, s := range f.selecting(r.Namespace, labels) {
		switch n := distance(filepath.Dir(r.File), s.dir); {
		case n > nearest:
		case n < nearest:
			ports, nearest = slices.Clone(s.PortsOf(r.Namespace, labels)), n
		default:
			ports = append(ports, s.PortsOf(r.Namespace, labels)...)
		}
	}
	return ports
}

// distance returns the number of path steps between two directories.
func distance(a, b string) int {
	from, to := strings.Split(a, string(filepath.Separator)), strings.Split(b, string(filepath.Separator))
	same := 0
	for same < len(from) && same < len(to) && from[same] == to[same] {
		same++
	}
	return len(from) + len(to) - 2*same
}

// quotasIn returns the quotas that can be in a namespace.
func (f *found) quotasIn(namespace string) []inject.Quota {
	if namespace != "" {
		return slices.Concat(f.quotas[namespace], f.quotas[""])
	}
	var all []inject.Quota
	for _, name := range slices.Sorted(maps.Keys(f.quotas)) {
		all = append(all, f.quotas[name]...)
	}
	return all
}

// A labelIndex maps a namespace and a label to the indexes of objects in a slice.
type labelIndex map[string]map[[2]string][]int

// anywhere is the key in a labelIndex for the objects in all namespaces. It is not a valid namespace
// name.
const anywhere = "*"

// add adds the index of an object. namespace is "" if the object has no namespace.
func (index labelIndex) add(namespace string, label [2]string, place int) {
	for _, n := range []string{namespace, anywhere} {
		if index[n] == nil {
			index[n] = map[[2]string][]int{}
		}
		index[n][label] = append(index[n][label], place)
	}
}

// near returns the indexes of the objects that have the label and can be in the namespace, in
// ascending order.
func (index labelIndex) near(namespace string, label [2]string) []int {
	if namespace == "" {
		return index[anywhere][label]
	}
	all := slices.Concat(index[namespace][label], index[""][label])
	slices.Sort(all)
	return all
}

// count returns the length of the result of near.
func (index labelIndex) count(namespace string, label [2]string) int {
	if namespace == "" {
		return len(index[anywhere][label])
	}
	return len(index[namespace][label]) + len(index[""][label])
}

// A podIndex finds the pods of Services.
type podIndex struct {
	mu       sync.Mutex    // protects served, the only field that changes
	distinct []inject.Pods // one entry for all pods with the same labels, namespace and inject.Pods.Key
	place    []int         // index in distinct of each pod
	served   []bool        // whether a Service selects the pods at the same index in distinct
	byLabel  labelIndex    // indexes into distinct
}

func newPodIndex(all []inject.Pods) *podIndex {
	x := &podIndex{byLabel: labelIndex{}}
	places := map[string]int{}
	for _, p := range all {
		key := textOf(p.Labels, p.Namespace, p.Key())
		place, has := places[key]
		if !has {
			place = len(x.distinct)
			places[key] = place
			x.distinct = append(x.distinct, p)
			for key, value := range p.Labels {
				x.byLabel.add(p.Namespace, [2]string{key, value}, place)
			}
		}
		x.place = append(x.place, place)
	}
	x.served = make([]bool, len(x.distinct))
	return x
}

// follow returns the outcome for a Service, and records the pods that it selects. It is safe for
// concurrent use.
func (x *podIndex) follow(r *Result, object map[string]any, step inject.Step) inject.Outcome {
	places := x.byLabel.possible(r.Namespace, r.facts.selector)
	pods := make([]inject.Pods, len(places))
	for i, place := range places {
		pods[i] = x.distinct[place]
	}
	out, selects := inject.FollowService(object, pods, step)
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, is := range selects {
		x.served[places[i]] = x.served[places[i]] || is
	}
	return out
}

// possible returns the objects that have the rarest label of a selector. Some of them may not match
// the whole selector.
func (index labelIndex) possible(namespace string, selector map[string]any) []int {
	var rarest [2]string
	fewest := math.MaxInt
	for key := range selector {
		label := [2]string{key, inject.Text(selector, key)}
		if n := index.count(namespace, label); n < fewest {
			rarest, fewest = label, n
		}
	}
	return index.near(namespace, rarest)
}

// isServed reports whether a Service selects the pods at index i in the input of newPodIndex.
func (x *podIndex) isServed(i int) bool { return x.served[x.place[i]] }
