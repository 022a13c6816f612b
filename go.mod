module github.com/queue-proxy/queue-proxy

go 1.26.0

require (
	github.com/coder/websocket v1.8.15
	github.com/kelseyhightower/envconfig v1.4.0
	go.uber.org/goleak v1.3.0
	go.uber.org/zap v1.28.0
	golang.org/x/net v0.62.0
	google.golang.org/grpc v1.85.0
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
)
