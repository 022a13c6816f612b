# `make` alone lists what there is. Needs Go, git and gcc (for the race
# detector); a target that needs more says so.

GO             ?= go
IMAGE          ?= queue-proxy:dev
WEBHOOK_IMAGE  ?= queue-proxy-injector:dev
IMAGE_FLAGS    ?=
FUZZTIME       ?= 10s
FUZZ           ?= .
SOAKTIME       ?= 30m
KNATIVE        ?= head v1.18
LINT_VERSION   := v2.11.3

VERSION = $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  = $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# The time of the commit, so that an image built twice is the same image.
EPOCH   = $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# Version and commit come in by -X alone: -buildvcs would put the state of the
# checkout into the binary, which no two builds share. The Dockerfile has the
# same line.
GO_BUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false \
	-ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)'

# The first that works, unless one is named.
IMAGE_TOOL ?= $(shell for t in docker podman buildah; do $$t info >/dev/null 2>&1 && echo $$t && break; done)
# A layer that podman takes from an earlier build keeps the times of that build.
IMAGE_BUILD = $(IMAGE_TOOL) build $(if $(filter docker,$(IMAGE_TOOL)),--build-arg SOURCE_DATE_EPOCH=$(EPOCH),--timestamp $(EPOCH) --no-cache) \
	--build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) $(IMAGE_FLAGS)

FUZZERS = grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' pkg | sed -E 's,(.*)/[^/]*:func (.*),./\1 \2,' | sort

LINT = bin/golangci-lint-$(LINT_VERSION)/golangci-lint

.PHONY: help run build man test load conformance fuzzers fuzz admission h2spec suites endurance knative cluster cluster-shell cluster-full e2e soak reproducible install-yaml chart release release-dry workflows linters lint check limits plots bench image clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

run: ## Start a sample app and the sidecar in front of it, and say what to try.
	@$(GO_BUILD) -o bin/ ./cmd/queue-proxy ./test/app
	@hack/run

# The directory and the programs. A release uses a directory for each platform and one for the manual pages.
OUT      ?= bin/
PROGRAMS ?= ./cmd/...

build: ## Build every program of cmd/ into bin/, static.
	@mkdir -p $(OUT)
	$(GO_BUILD) -o $(OUT) $(PROGRAMS)

man: build ## Write the manual pages of the injector and the kubectl plugin into bin/man.
	@rm -rf $(OUT)man
	for program in injector kubectl-queue_proxy; do SOURCE_DATE_EPOCH=$(EPOCH) $(OUT)$$program man $(OUT)man || exit 1; done

# The timeout for the tests of a package. It is large because it is only for a test that hangs.
TEST_TIMEOUT := 15m
# The number of packages to test at the same time. It is more than the number of processors
# because most tests wait for the network or for another process.
TEST_JOBS = $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

# make check runs go vet.
TEST = $(GO) test -vet=off -p $(TEST_JOBS) -timeout $(TEST_TIMEOUT)

# The first step exists because the tests of several packages, which run at the same time, use
# the programs and kustomize. Without it, each of them would compile the same packages. The
# last step runs without the race detector because some of these tests are not compiled with
# it, and the others do not start a goroutine.
test: ## Run all tests but the conformance suite and the load tests, with the race detector.
	@echo "== make test, 1 of 3: compile the programs and kustomize"
	$(GO) build -o /dev/null ./cmd/...
	hack/kustomize version
	@echo "== make test, 2 of 3: compile the packages and test them with the race detector; each prints a line when it is done"
	$(TEST) -race $$($(GO) list ./... | grep -Ev '/test/(conformance|rules)')
	@echo "== make test, 3 of 3: test without the race detector"
	$(TEST) ./pkg/transport/netconn ./pkg/sidecar ./pkg/observe/accesslog ./test/rules/... ./test/limits/...
	$(if $(filter amd64,$(shell $(GO) env GOHOSTARCH)),GOARCH=386 CGO_ENABLED=0 $(TEST) ./pkg/transport/netconn ./pkg/transport/http1/wire ./pkg/config ./pkg/observe/tracing)

load: ## Run the injector under the heaviest load that it accepts; needs the whole machine for a minute.
	$(GO) vet -tags load ./cmd/injector
	$(GO) test -tags load -count=1 -timeout $(TEST_TIMEOUT) -v -run '^(TestHeaviest|TestManyPeersStayWithinLimits|TestOversized)' ./cmd/injector

conformance: ## Run the black-box suite; QUEUE_PROXY=path chooses another binary.
	QUEUE_PROXY=$(abspath $(QUEUE_PROXY)) $(GO) test -count=1 -timeout $(if $(QUEUE_PROXY_FIXED_PORTS),30m,5m) ./test/conformance/...

admission: ## Run the API server's own admission code against the injector; minutes the first time.
	cd test/admission && $(GO) vet ./... && $(GO) test -count=1 -timeout 8m ./...

chart: ## Compare the Helm chart with the overlays by Helm's own code; minutes the first time.
	cd test/chart && $(GO) vet ./... && $(GO) test -count=1 -timeout 8m ./...

h2spec: ## Run h2spec against HTTP/2 on both ports, and against the standard library's reverse proxy.
	cd test/h2spec && $(GO) vet ./... && $(GO) test -count=1 -timeout 4m -v ./...

# All rows take about two hours. -write in ARGS writes the lines of the rows into the table of test/endurance/README.md.
endurance: ## Run real peers at full rate, alone, through the sidecar and through HAProxy; Debian. ARGS='-run REGEXP -seconds 5', QUEUE_PROXY=path.
	test/endurance/setup $(if $(filter -quick,$(ARGS)),quick)
	@mkdir -p bin
	$(if $(QUEUE_PROXY),,$(GO_BUILD) -o bin/ ./cmd/queue-proxy)
	cd test/endurance && export CGO_ENABLED=0 && $(GO) vet -trimpath ./... && $(GO) test -trimpath ./... && $(GO_BUILD) -o $(CURDIR)/bin/endurance .
	bin/endurance -sidecar $(or $(QUEUE_PROXY),bin/queue-proxy) $(ARGS)

# -quick does not use HAProxy. -write in ARGS writes the table of docs/reliability.md.
suites: ## Run connectrpc conformance, gRPC interoperability and WebSocket cases, alone, through the sidecar and HAProxy; Debian. ARGS='-run REGEXP', QUEUE_PROXY=path.
	$(if $(filter -quick,$(ARGS)),,test/endurance/setup)
	@mkdir -p bin/suites-programs
	$(if $(QUEUE_PROXY),,$(GO_BUILD) -o bin/ ./cmd/queue-proxy)
	cd test/suites && $(GO) vet . && $(GO) test . && $(GO) build -buildvcs=false -o $(CURDIR)/bin/suites . && $(GO) build -buildvcs=false -o $(CURDIR)/bin/suites-programs/ tool
	bin/suites -sidecar $(or $(QUEUE_PROXY),bin/queue-proxy) $(ARGS)

# Knative's ports are fixed: the tests make a network namespace, for root, or where a
# user may make a user namespace.
knative: ## Run the sidecar under Knative's own code, head and 1.18; root; minutes the first time. QUEUE_PROXY=path, or =knative for Knative's own.
	@for release in $(KNATIVE); do \
		test -f test/knative/$$release/go.mod || { echo "KNATIVE=$$release: test/knative has no such release" >&2; exit 2; }; \
		echo "== $$release"; \
		(cd test/knative/$$release && $(GO) vet ./... .. && \
		QUEUE_PROXY=$(if $(filter-out knative,$(QUEUE_PROXY)),$(abspath $(QUEUE_PROXY)),$(QUEUE_PROXY)) $(GO) test -count=1 -timeout 20m -v ./...) || exit 1; \
	done

# go test -run reports success for a pattern that matches nothing, so a pattern of the user is
# checked first: each alternative must match.
SELECTION = $(GO) run ./test/rules/selection

# What is built, half an hour the first time, is kept in a folder outside the checkout.
cluster: ## Run both images in a real Kubernetes with Knative Serving; Debian and root; half an hour the first time. CLUSTER=NAME is a part.
	@$(SELECTION) -tags cluster -run '$(CLUSTER)' ./test/cluster
	test/cluster/setup
	$(GO) vet -tags cluster ./test/cluster
	$(GO) test -tags cluster -count=1 -timeout 25m -parallel 4 -v ./test/cluster $(if $(CLUSTER),-run '$(CLUSTER)')

cluster-full: ## In that cluster: Knative's own image beside ours, its own tests, KEDA and an HPA by our numbers. CLUSTER=NAME is a part; ARGS=-update writes the tables of the documents.
	@$(SELECTION) -tags cluster,clusterfull -run '$(CLUSTER)' ./test/cluster
	test/cluster/setup full
	$(GO) vet -tags cluster,clusterfull ./test/cluster
	$(GO) test -tags cluster,clusterfull -count=1 -timeout 90m -v ./test/cluster -run '$(or $(CLUSTER),^TestFull)' $(ARGS)
	$(if $(CLUSTER),,set -e; for release in v1.18 v0.26; do \
		$(GO) test -tags cluster -count=1 -timeout 30m -parallel 2 -v ./test/cluster -knative knative-$$release -run '$(CONTROL_PLANES)'; \
	done)

# What each release of Knative must do with our image.
CONTROL_PLANES := ^TestServiceScalesToZero|^TestAutoscalerUses|^TestRollOutsLose|^TestInternalTLS

cluster-shell: ## Start that cluster, leave it running until Ctrl-C, and say how to reach it.
	test/cluster/setup
	$(GO) test -tags cluster -count=1 -timeout 0 -v ./test/cluster -shell

fuzzers: ## List the fuzzers, each as "package Name".
	@$(FUZZERS)

# A finding is left in the package's testdata/fuzz, where go test reads it. Making
# interesting inputs small would take a minute each, all of a short run.
fuzz: ## Run each fuzzer for FUZZTIME (10s); FUZZ="wire Fuzz" chooses by "package Name".
	@$(FUZZERS) | $(SELECTION) -lines '$(FUZZ)'
	@$(FUZZERS) | grep -E '$(FUZZ)' | { \
	ran=; failed=; while read -r package name; do \
		ran=1; echo "== $$package $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s "$$package" </dev/null || failed="$$failed $$name"; \
	done; \
	if [ -z "$$ran" ]; then echo "make fuzz: there is no fuzzer like that" >&2; exit 1; fi; \
	if [ -n "$$failed" ]; then echo "make fuzz: failed:$$failed" >&2; exit 1; fi; }

e2e: ## Run all that needs real parts: containers, faults, an API server's code, h2spec, Prometheus, a browser. Debian and root.
	test/e2e/run

soak: ## Run the sidecar for SOAKTIME (30m) under mixed traffic and faults; memory must stay flat and all counters agree.
	nice $(GO) test -tags soak -count=1 -timeout 0 -v ./test/soak -time $(SOAKTIME)

reproducible: ## Build both images twice, from nothing, and compare; Debian and root.
	test/e2e/setup reproducible

install-yaml: ## Write each way to install as one file into bin/install, with the images IMAGE and WEBHOOK_IMAGE.
	$(GO) run ./hack/release install -version '$(VERSION)' -image '$(IMAGE)' -webhook-image '$(WEBHOOK_IMAGE)'

# The organisation is that of the module; this variable changes it.
REGISTRY ?= ghcr.io/$(shell $(GO) list -m | cut -d/ -f2)
# A dry run pushes and signs nothing, and needs no tag. SHORT=1 leaves out the images and PLATFORMS
# all but some: .ci/run has that.
DRY_RUN   ?=
SHORT     ?=
PLATFORMS ?=
RELEASE   ?= $(if $(DRY_RUN),v0.0.0-dev,$(shell git tag --points-at HEAD --list 'v*' | head -n 1))

release: ## Make a release of the tagged commit: docs/releases.md. DRY_RUN=1 does all but push and sign.
	$(GO) run ./hack/release make -version '$(RELEASE)' -commit '$(COMMIT)' -epoch '$(EPOCH)' -registry '$(REGISTRY)' \
		$(if $(DRY_RUN),-dry-run) $(if $(SHORT),-short) $(if $(PLATFORMS),-platforms $(PLATFORMS)) -image-flags '$(IMAGE_FLAGS)'

release-dry: ## Do all of a release but push and sign, with buildah. SHORT=1 leaves out images, PLATFORMS=linux/arm64 all others.
	@$(MAKE) --no-print-directory workflows
	@$(MAKE) --no-print-directory release DRY_RUN=1

workflows: ## Check the syntax of the workflows.
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 -shellcheck= -pyflakes=

lint: $(LINT) ## Run the linters of .golangci.yml; builds them the first time.
	$(LINT) run ./...

linters: $(LINT) ## Build the linters, which takes minutes.

$(LINT):
	GOBIN=$(CURDIR)/$(@D) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

check: ## Check format, vet, go.mod, the rules of the tree, documents, language and lint.
	@unformatted=$$(gofmt -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then printf 'not formatted by gofmt:\n%s\n' "$$unformatted" >&2; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags e2e,load,soak,cluster,clusterfull ./...
	GOARCH=386 CGO_ENABLED=0 $(GO) vet ./pkg/... ./cmd/... ./test/conformance
	GOARCH=arm GOARM=7 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/queue-proxy
	GOOS=windows CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/injector ./cmd/kubectl-queue_proxy
	$(GO) mod tidy -diff
	$(GO) test -count=1 ./test/rules/...
	$(GO) run ./hack/plain -check
	@$(MAKE) --no-print-directory lint

limits: ## Compare the adaptive limit with fixed limits, simulated and real, and write docs/limits.md; an hour. ARGS='-run F1'.
	$(GO_BUILD) -o bin/ ./cmd/queue-proxy
	$(GO) run ./test/limits/measure $(or $(ARGS),-write docs/limits.md)

bench: ## Measure side by side with Knative's own and others; BENCH_QUICK=1 is short, BENCH_ROWS=tls a part. BENCH_BEFORE=path compares with another build.
	test/bench/setup
	@mkdir -p bin/bench
	$(GO_BUILD) -o bin/bench/ ./cmd/queue-proxy ./test/bench ./test/bench/app ./test/bench/baseline
	$(if $(BENCH_BEFORE),,cd test/bench/knative && $(GO_BUILD) -o $(CURDIR)/bin/bench/knative knative.dev/serving/cmd/queue)
	bin/bench/bench

image: ## Build the two container images with docker, podman or buildah, whichever works.
	@if [ -z "$(IMAGE_TOOL)" ]; then echo "make image: none of docker, podman and buildah works here" >&2; exit 1; fi
	$(IMAGE_BUILD) --target queue-proxy -t $(IMAGE) .
	$(IMAGE_BUILD) --target injector -t $(WEBHOOK_IMAGE) .

clean: ## Remove what was built.
	rm -rf bin
