package plugin

import "slices"

// states lists the states from the worst to the best.
func states() []State { return []State{Unknown, NotReady, Draining, Ready} }

// ByWorkload returns a row for each workload, sorted by namespace and name. Numbers are sums over the pods, but the
// 99th percentile is the maximum over the pods. The state and the note are from the pod in the worst state, and the
// last failure is the latest failure of all pods.
func ByWorkload(rows []Row) []Row {
	type key struct{ namespace, workload string }
	groups := map[key][]Row{}
	for _, r := range rows {
		k := key{r.Namespace, r.Workload}
		groups[k] = append(groups[k], r)
	}
	all := make([]Row, 0, len(groups))
	for _, group := range groups {
		all = append(all, workloadRow(group))
	}
	slices.SortFunc(all, byName)
	return all
}

// workloadRow returns the row of a workload with at least one pod.
func workloadRow(pods []Row) Row {
	w := Row{Namespace: pods[0].Namespace, Workload: pods[0].Workload, Pods: len(pods), State: Ready, Failures: map[string]int{}}
	unlimited := false
	for _, p := range pods {
		if p.State == Ready {
			w.ReadyPods++
		}
		if worse := slices.Index(states(), p.State) < slices.Index(states(), w.State); worse || w.Note == "" && p.State == w.State {
			w.State, w.Note = p.State, p.Note
			if p.Note != "" {
				w.Note = p.Pod + ": " + p.Note
			}
		}
		unlimited = unlimited || p.Limit != nil && *p.Limit == 0
		w.Running, w.Waiting = sum(w.Running, p.Running), sum(w.Waiting, p.Waiting)
		w.Limit, w.QueueLimit = sum(w.Limit, p.Limit), sum(w.QueueLimit, p.QueueLimit)
		w.Rate = sum(w.Rate, p.Rate)
		if p.P99 != nil && (w.P99 == nil || *p.P99 > *w.P99) {
			w.P99 = p.P99
		}
		if p.Failure != "" && (w.Failure == "" || latest(p.FailedAt, w.FailedAt) < 0) {
			w.Failure, w.FailedAt = p.Failure, p.FailedAt
		}
		for reason, n := range p.Failures {
			w.Failures[reason] += n
		}
	}
	if unlimited {
		w.Limit = new(int)
	}
	w.Rate = rounded(w.Rate)
	return w
}

// sum returns the sum of two numbers. An unknown number is ignored.
func sum[T int | float64](a, b *T) *T {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	n := *a + *b
	return &n
}
