# The sidecar alone, on nothing: no shell, no libc, no user database.

# Only its Go matters: what is built does not depend on the builder's system.
ARG BUILDER=golang:1.26-bookworm

FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY cmd cmd
COPY pkg pkg
ARG TARGETOS
ARG TARGETARCH
ARG GOPROXY
ARG VERSION=dev
ARG COMMIT=unknown
# The flags are the Makefile's: an image built twice holds the same binary. Some
# builders leave TARGETOS and TARGETARCH empty.
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/go/cache \
    GOPATH=/go GOCACHE=/go/cache CGO_ENABLED=0 GOOS=${TARGETOS:-linux} GOARCH=${TARGETARCH:-amd64} \
    go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" \
      -o /out/ko-app/queue ./cmd/queue-proxy

FROM scratch
ARG VERSION=dev
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="queue-proxy" \
      org.opencontainers.image.description="A sidecar that queues, probes, counts and drains in front of a user container" \
      org.opencontainers.image.source="https://github.com/queue-proxy/queue-proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
# Exporters of spans and metrics may be told to speak HTTPS.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# The exec probes of old control planes call the binary by this path
# (docs/promises.md, "On Knative").
COPY --from=build /out/ko-app/queue /ko-app/queue
# A number, because runAsNonRoot cannot judge a name.
USER 65532:65532
# Serving, TLS, admin, autoscaler, metrics.
EXPOSE 8012 8112 8022 9090 9091
ENTRYPOINT ["/ko-app/queue"]
