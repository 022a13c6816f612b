# Run `make` to list the targets. All targets require Go, git and gcc (for the race detector). The
# description of a target lists additional requirements.

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
# The time of the commit in seconds since the Unix epoch. It makes the images reproducible.
EPOCH   = $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# The flag -X sets the version and the commit. -buildvcs is disabled because it would store the state of
# the checkout in the binary, and builds would not be reproducible. The Dockerfile uses the same flags.
GO_BUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false \
	-ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)'

# The default is the first of docker, podman and buildah that works.
IMAGE_TOOL ?= $(shell for t in docker podman buildah; do $$t info >/dev/null 2>&1 && echo $$t && break; done)
# Without --no-cache, podman reuses layers that contain the timestamps of earlier builds.
IMAGE_BUILD = $(IMAGE_TOOL) build $(if $(filter docker,$(IMAGE_TOOL)),--build-arg SOURCE_DATE_EPOCH=$(EPOCH),--timestamp $(EPOCH) --no-cache) \
	--build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) $(IMAGE_FLAGS)

FUZZERS = grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' pkg | sed -E 's,(.*)/[^/]*:func (.*),./\1 \2,' | sort

LINT = bin/golangci-lint-$(LINT_VERSION)/golangci-lint

.PHONY: help run build man test load conformance conformance-program conformance-table fuzzers fuzz admission h2spec suites endurance knative cluster cluster-shell cluster-full e2e soak reproducible install-yaml chart site release release-dry workflows linters lint check limits plots bench image clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' Makefile

run: ## Start the sidecar with a sample application, and print example commands.
	@$(GO_BUILD) -o bin/ ./cmd/queue-proxy ./test/app
	@hack/run

# The output directory and the programs to build. A release uses a directory for each platform and a
# directory for the manual pages.
OUT      ?= bin/
PROGRAMS ?= ./cmd/...

build: ## Build all programs in cmd as static binaries in bin.
	@mkdir -p $(OUT)
	$(GO_BUILD) -o $(OUT) $(PROGRAMS)

# A test binary with a version acts as a program that does not need go test (test/conformance/program_test.go).
conformance-program: ## Build the conformance suite as the program bin/queue-proxy-conformance, which runs without this repository.
	@mkdir -p $(OUT)
	CGO_ENABLED=0 $(GO) test -c -vet=off -trimpath -buildvcs=false \
		-ldflags '-s -w -X github.com/queue-proxy/queue-proxy/test/conformance.programVersion=$(VERSION)' \
		-o $(OUT)queue-proxy-conformance ./test/conformance

man: build ## Generate the manual pages of the injector and the kubectl plugin in bin/man.
	@rm -rf $(OUT)man
	for program in injector kubectl-queue_proxy; do SOURCE_DATE_EPOCH=$(EPOCH) $(OUT)$$program man $(OUT)man || exit 1; done

# The timeout for the tests of a package. It is large because it is only needed for tests that hang.
TEST_TIMEOUT := 15m
# The number of packages to test at the same time. It is more than the number of processors
# because most tests wait for the network or for another process.
TEST_JOBS = $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

# go vet is disabled because make check runs it.
TEST = $(GO) test -vet=off -p $(TEST_JOBS) -timeout $(TEST_TIMEOUT)

# The first step exists because the tests of several packages, which run at the same time, use
# the programs and kustomize. Without this step, each of these tests would compile the same
# packages. The last step runs without the race detector because some of its tests are not
# compiled with the race detector, and the others do not start a goroutine.
test: ## Run all tests except the conformance and load tests, with the race detector.
	@echo "== make test, 1 of 3: compile the programs and kustomize"
	$(GO) build -o /dev/null ./cmd/...
	hack/kustomize version
	@echo "== make test, 2 of 3: compile and test the packages with the race detector; each package prints a line when it is complete"
	$(TEST) -race $$($(GO) list ./... | grep -Ev '/test/(conformance|rules)')
	@echo "== make test, 3 of 3: test without the race detector"
	$(TEST) ./pkg/transport/netconn ./pkg/sidecar ./pkg/observe/accesslog ./test/rules/... ./test/limits/...
	$(if $(filter amd64,$(shell $(GO) env GOHOSTARCH)),hack/test-386 -vet=off -p $(TEST_JOBS) -timeout $(TEST_TIMEOUT))

load: ## Run the injector with the maximum load (about one minute, requires all CPUs).
	$(GO) vet -tags load ./cmd/injector
	$(GO) test -tags load -count=1 -timeout $(TEST_TIMEOUT) -v -run '^(TestHeaviest|TestManyPeersStayWithinLimits|TestOversized)' ./cmd/injector

conformance: ## Run the conformance tests; QUEUE_PROXY=path selects another binary.
	QUEUE_PROXY=$(abspath $(QUEUE_PROXY)) $(GO) test -count=1 -timeout $(if $(QUEUE_PROXY_FIXED_PORTS),30m,5m) ./test/conformance/...

CONFORMANCE_TABLES = -write test/conformance/results.txt -summary docs/conformance.md

# The binaries of Knative are built from its modules. -write keeps the results of other binaries. The
# target takes about 30 minutes. It requires the packages of test/conformance/setup, and root or user
# namespaces.
conformance-table: build conformance-program ## Run the suite with our binary and the binaries of KNATIVE, and write docs/conformance.md.
	bin/queue-proxy-conformance -bin bin/queue-proxy $(CONFORMANCE_TABLES)
	for release in $(KNATIVE); do \
		(cd test/knative/$$release && $(GO_BUILD) -o $(CURDIR)/bin/knative-$$release knative.dev/serving/cmd/queue) && \
		name="Knative $$release ($$(cd test/knative/$$release && $(GO) list -m -f '{{.Version}}' knative.dev/serving))" && \
		{ bin/queue-proxy-conformance -bin bin/knative-$$release -fixed-ports -name "$$name" $(CONFORMANCE_TABLES) || [ $$? -eq 1 ]; } || exit 1; \
	done

admission: ## Test the injector with the admission code of the API server; the first run takes minutes.
	cd test/admission && $(GO) vet ./... && $(GO) test -count=1 -timeout 8m ./...

chart: ## Compare the objects of the Helm chart and the overlays; the first run takes minutes.
	cd test/chart && $(GO) vet ./... && $(GO) test -count=1 -timeout 8m ./...

h2spec: ## Run h2spec with the sidecar and with the reverse proxy of the standard library.
	cd test/h2spec && $(GO) vet ./... && $(GO) test -count=1 -timeout 4m -v ./...

# All rows take about two hours. With -write in ARGS, the results are written to the table in
# test/endurance/results.txt.
endurance: ## Run the endurance tests with real clients and servers (Debian). ARGS='-run REGEXP -seconds 5', QUEUE_PROXY=path.
	test/endurance/setup $(if $(filter -quick,$(ARGS)),quick)
	@mkdir -p bin
	$(if $(QUEUE_PROXY),,$(GO_BUILD) -o bin/ ./cmd/queue-proxy)
	cd test/endurance && export CGO_ENABLED=0 && $(GO) vet -trimpath ./... && $(GO) test -trimpath ./... && $(GO_BUILD) -o $(CURDIR)/bin/endurance .
	bin/endurance -sidecar $(or $(QUEUE_PROXY),bin/queue-proxy) $(ARGS)

# With -quick in ARGS, HAProxy is not used. With -write, the results are written to the table in
# docs/reliability.md.
suites: ## Run public test suites for connectrpc, gRPC and WebSockets (Debian). ARGS='-run REGEXP', QUEUE_PROXY=path.
	$(if $(filter -quick,$(ARGS)),,test/endurance/setup)
	@mkdir -p bin/suites-programs
	$(if $(QUEUE_PROXY),,$(GO_BUILD) -o bin/ ./cmd/queue-proxy)
	cd test/suites && $(GO) vet . && $(GO) test . && $(GO) build -buildvcs=false -o $(CURDIR)/bin/suites . && $(GO) build -buildvcs=false -o $(CURDIR)/bin/suites-programs/ tool
	bin/suites -sidecar $(or $(QUEUE_PROXY),bin/queue-proxy) $(ARGS)

# The ports of Knative are fixed, so the tests create a network namespace. This requires root or the
# permission to create user namespaces.
knative: ## Test the sidecar with the code of Knative (root). QUEUE_PROXY=path, or QUEUE_PROXY=knative for the sidecar of Knative.
	@for release in $(KNATIVE); do \
		test -f test/knative/$$release/go.mod || { echo "KNATIVE=$$release: test/knative has no such release" >&2; exit 2; }; \
		echo "== $$release"; \
		(cd test/knative/$$release && $(GO) vet ./... .. && \
		QUEUE_PROXY=$(if $(filter-out knative,$(QUEUE_PROXY)),$(abspath $(QUEUE_PROXY)),$(QUEUE_PROXY)) $(GO) test -count=1 -timeout 20m -v ./...) || exit 1; \
	done

# go test -run succeeds even if the pattern matches no test. Therefore, a pattern from the user is
# checked first. Each alternative must match at least one test.
SELECTION = $(GO) run ./test/rules/selection

# The first run builds Kubernetes and Knative, which takes about 30 minutes. The programs are stored
# outside the repository.
cluster: ## Test both images in a Kubernetes cluster with Knative Serving (Debian, root). CLUSTER=NAME selects tests.
	@$(SELECTION) -tags cluster -run '$(CLUSTER)' ./test/cluster
	test/cluster/setup
	$(GO) vet -tags cluster ./test/cluster
	$(GO) test -tags cluster -count=1 -timeout 25m -parallel 4 -v ./test/cluster $(if $(CLUSTER),-run '$(CLUSTER)')

cluster-full: ## Run the tests of Knative, KEDA and the HPA in this cluster. CLUSTER=NAME selects tests; ARGS=-update writes the results.
	@$(SELECTION) -tags cluster,clusterfull -run '$(CLUSTER)' ./test/cluster
	test/cluster/setup full
	$(GO) vet -tags cluster,clusterfull ./test/cluster
	$(GO) test -tags cluster,clusterfull -count=1 -timeout 90m -v ./test/cluster -run '$(or $(CLUSTER),^TestFull)' $(ARGS)
	$(if $(CLUSTER),,set -e; for release in v1.18 v0.26; do \
		$(GO) test -tags cluster -count=1 -timeout 30m -parallel 2 -v ./test/cluster -knative knative-$$release -run '$(CONTROL_PLANES)'; \
	done)

# The tests that must pass with each release of Knative.
CONTROL_PLANES := ^TestServiceScalesToZero|^TestAutoscalerUses|^TestRollOutsLose|^TestInternalTLS

cluster-shell: ## Start this cluster, print how to connect to it, and stop it after Ctrl-C.
	test/cluster/setup
	$(GO) test -tags cluster -count=1 -timeout 0 -v ./test/cluster -shell

fuzzers: ## List the fuzz tests in the form "package Name".
	@$(FUZZERS)

# Inputs that fail are stored in testdata/fuzz of the package, so that go test runs them. The time for
# minimization is short because the minimization of each interesting input would otherwise take a minute.
fuzz: ## Run each fuzz test for FUZZTIME (10s); FUZZ="wire Fuzz" selects by "package Name".
	@$(FUZZERS) | $(SELECTION) -lines '$(FUZZ)'
	@$(FUZZERS) | grep -E '$(FUZZ)' | { \
	ran=; failed=; while read -r package name; do \
		ran=1; echo "== $$package $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s "$$package" </dev/null || failed="$$failed $$name"; \
	done; \
	if [ -z "$$ran" ]; then echo "make fuzz: no fuzz test matches" >&2; exit 1; fi; \
	if [ -n "$$failed" ]; then echo "make fuzz: failed:$$failed" >&2; exit 1; fi; }

e2e: ## Run the end-to-end tests with containers, Prometheus and a browser (Debian, root).
	test/e2e/run

soak: ## Run the sidecar with mixed traffic and faults for SOAKTIME (30m), and check the memory and the counters.
	nice $(GO) test -tags soak -count=1 -timeout 0 -v ./test/soak -time $(SOAKTIME)

reproducible: ## Build both images twice without caches, and compare them (Debian, root).
	test/e2e/setup reproducible

install-yaml: ## Write the installation manifests with the images IMAGE and WEBHOOK_IMAGE to bin/install.
	$(GO) run ./hack/release install -version '$(VERSION)' -image '$(IMAGE)' -webhook-image '$(WEBHOOK_IMAGE)'

# The default organization is that of the module.
REGISTRY ?= ghcr.io/$(shell $(GO) list -m | cut -d/ -f2)
# A dry run does not push or sign, and does not require a tag. SHORT=1 skips the images. PLATFORMS
# selects platforms. .ci/run uses both.
DRY_RUN   ?=
SHORT     ?=
PLATFORMS ?=
RELEASE   ?= $(if $(DRY_RUN),v0.0.0-dev,$(shell git tag --points-at HEAD --list 'v*' | head -n 1))

release: ## Create a release of the tagged commit (see docs/releases.md). DRY_RUN=1 does not push or sign.
	$(GO) run ./hack/release make -version '$(RELEASE)' -commit '$(COMMIT)' -epoch '$(EPOCH)' -registry '$(REGISTRY)' \
		$(if $(DRY_RUN),-dry-run) $(if $(SHORT),-short) $(if $(PLATFORMS),-platforms $(PLATFORMS)) -image-flags '$(IMAGE_FLAGS)'

release-dry: ## Create a release without pushing or signing (buildah). SHORT=1 skips the images, PLATFORMS=linux/arm64 selects platforms.
	@$(MAKE) --no-print-directory workflows
	@$(MAKE) --no-print-directory release DRY_RUN=1

workflows: ## Check the syntax of the workflows.
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 -shellcheck= -pyflakes=

lint: $(LINT) ## Run the linters in .golangci.yml.
	$(LINT) run ./...

linters: $(LINT) ## Build golangci-lint (takes minutes).

$(LINT):
	GOBIN=$(CURDIR)/$(@D) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

check: ## Check the format, the imports, the documents and the language, and run go vet and the linters.
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

site: ## Build the documentation site in bin/site and check its links. Hugo is installed with apt-get.
	hack/site/build

limits: ## Compare adaptive and fixed limits and write the tables in test/limits/README.md (about one hour). ARGS='-run F1'.
	$(GO_BUILD) -o bin/ ./cmd/queue-proxy
	$(GO) run ./test/limits/measure $(or $(ARGS),-write test/limits/README.md)

bench: ## Compare the sidecar with other proxies. BENCH_QUICK=1 is faster, BENCH_ROWS=tls selects rows, BENCH_BEFORE=path compares with another build.
	test/bench/setup
	@mkdir -p bin/bench
	$(GO_BUILD) -o bin/bench/ ./cmd/queue-proxy ./test/bench ./test/bench/app ./test/bench/baseline
	$(if $(BENCH_BEFORE),,cd test/bench/knative && $(GO_BUILD) -o $(CURDIR)/bin/bench/knative knative.dev/serving/cmd/queue)
	bin/bench/bench

image: ## Build both container images with docker, podman or buildah.
	@if [ -z "$(IMAGE_TOOL)" ]; then echo "make image: docker, podman and buildah are not available" >&2; exit 1; fi
	$(IMAGE_BUILD) --target queue-proxy -t $(IMAGE) .
	$(IMAGE_BUILD) --target injector -t $(WEBHOOK_IMAGE) .

clean: ## Remove bin.
	rm -rf bin
