# Two images, each one binary on nothing: no shell, no libc, no user database.
# Beside it lies what it was made of, as CycloneDX.
# The sidecar's is the last stage, so it is what is built when no target is named.

# Only its Go and its CA certificates matter. A release that must be the same
# to the byte for ever names it by digest: --build-arg BUILDER=docker.io/library/golang@sha256:...
# The name is whole, because podman does not guess the registry of a short one.
ARG BUILDER=docker.io/library/golang:1.26.9-bookworm

FROM --platform=$BUILDPLATFORM ${BUILDER} AS source
WORKDIR /src
COPY go.mod go.sum ./
COPY cmd cmd
COPY pkg pkg
COPY hack/sbom hack/sbom
ARG TARGETOS
ARG TARGETARCH
ARG GOPROXY
ARG VERSION=dev
ARG COMMIT=unknown
# The flags are the Makefile's: an image built twice holds the same binary. Some
# builders leave TARGETOS and TARGETARCH empty.
ENV GOPATH=/go GOCACHE=/go/cache CGO_ENABLED=0 GOOS=${TARGETOS:-linux} GOARCH=${TARGETARCH:-amd64} \
    VERSION=${VERSION} LDFLAGS="-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}"

FROM source AS build-injector
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/go/cache \
    go build -trimpath -buildvcs=false -ldflags "$LDFLAGS" -o /out/ko-app/injector ./cmd/injector && \
    GOOS= GOARCH= go run ./hack/sbom /out/ko-app/injector "$VERSION" >/out/ko-app/injector.cdx.json

FROM source AS build-queue-proxy
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/go/cache \
    go build -trimpath -buildvcs=false -ldflags "$LDFLAGS" -o /out/ko-app/queue ./cmd/queue-proxy && \
    GOOS= GOARCH= go run ./hack/sbom /out/ko-app/queue "$VERSION" >/out/ko-app/queue.cdx.json

FROM scratch AS injector
ARG VERSION=dev
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="queue-proxy-injector" \
      org.opencontainers.image.description="Puts the queue-proxy into pods, as a command and as a webhook" \
      org.opencontainers.image.source="https://github.com/queue-proxy/queue-proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
COPY --from=build-injector /out/ko-app /ko-app
# A number, because runAsNonRoot cannot judge a name.
USER 65532:65532
# The webhook, metrics.
EXPOSE 8443 8080
ENTRYPOINT ["/ko-app/injector"]

FROM scratch AS queue-proxy
ARG VERSION=dev
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="queue-proxy" \
      org.opencontainers.image.description="A sidecar that queues, probes, counts and drains in front of a user container" \
      org.opencontainers.image.source="https://github.com/queue-proxy/queue-proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
# Exporters of spans and metrics may be told to speak HTTPS.
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# The exec probes of old control planes call the binary by this path
# (docs/promises.md, "On Knative").
COPY --from=build-queue-proxy /out/ko-app /ko-app
USER 65532:65532
# Serving, TLS, admin, autoscaler, metrics.
EXPOSE 8012 8112 8022 9090 9091
ENTRYPOINT ["/ko-app/queue"]
