# This file builds two images. Each image contains a static binary and an SBOM in the CycloneDX format,
# without a shell, a libc or a user database. The stage of the sidecar is last, so that it is the default
# target.

# The images use Go and the CA certificates of the builder image. To keep builds reproducible, set a
# digest: --build-arg BUILDER=docker.io/library/golang@sha256:... The registry is part of the name
# because podman does not add a registry.
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
# The flags are the same as in the Makefile, so that builds are reproducible. Some builders do not set
# TARGETOS and TARGETARCH.
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
      org.opencontainers.image.description="Adds the queue-proxy to pods, as a command or as a webhook" \
      org.opencontainers.image.source="https://github.com/queue-proxy/queue-proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
COPY --from=build-injector /out/ko-app /ko-app
# runAsNonRoot requires a numeric user ID.
USER 65532:65532
# The webhook and the metrics.
EXPOSE 8443 8080
ENTRYPOINT ["/ko-app/injector"]

FROM scratch AS queue-proxy
ARG VERSION=dev
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="queue-proxy" \
      org.opencontainers.image.description="A sidecar that limits and queues the requests for a container, probes it, and drains before the pod ends" \
      org.opencontainers.image.source="https://github.com/queue-proxy/queue-proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
# The exporters of traces and metrics can use HTTPS.
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# The exec probes of old control planes use this path of the binary (docs/promises.md, "On Knative").
COPY --from=build-queue-proxy /out/ko-app /ko-app
USER 65532:65532
# Requests, requests over TLS, preStop hooks, statistics for the autoscaler, and metrics.
EXPOSE 8012 8112 8022 9090 9091
ENTRYPOINT ["/ko-app/queue"]
