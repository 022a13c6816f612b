package sidecar

import (
	"net/http"

	"go.uber.org/zap"
)

// adminHandler serves the preStop hook of the user container, and nothing else.
// It returns when the user container may die: when the drain is over, or after
// a second when the pod is not ending at all (promises.md 3.5).
func (s *sidecar) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/wait-for-drain", func(w http.ResponseWriter, r *http.Request) {
		s.log.Info("the user container is being stopped, draining")
		s.proxy.Drain.Begin(false)
		outcome := s.proxy.Drain.Wait(r.Context())
		s.log.Info("the user container may stop", zap.Stringer("outcome", outcome))
	})
	return mux
}
