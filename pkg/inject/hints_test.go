package inject

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// mounted is a container with a volume at a path.
func mounted(path string) string { return `"volumeMounts":[{"name":"v","mountPath":"` + path + `"}]` }

const pairOfFlags = `"args":["--tls-cert-file=/c/tls.crt","--tls-private-key-file=/c/tls.key"]`

var hinted = []struct{ fact, container, why string }{ // why "": it is injected
	{"a flag for HTTPS", `"args":["--https-address=:3000"],"ports":[{"containerPort":3000,"name":"oaproxy"}]`, "--https-address=:3000"},
	{"the same of another port", `"args":["--https-address=:8443"],"ports":[{"containerPort":3000}]`, ""},
	{"a flag and its value apart", `"command":["serve"],"args":["--secure-listen-address","0.0.0.0:8080"],"ports":[{"containerPort":8080}]`, "--secure-listen-address=0.0.0.0:8080"},
	{"in a shell's line", `"command":["sh","-c","exec serve --tls-port '7000' --x"],"ports":[{"containerPort":7000}]`, "--tls-port=7000"},
	{"in another spelling", `"args":["-httpsPort=7000"],"ports":[{"containerPort":7000}]`, "-httpsPort=7000"},
	{"a protocol alone", `"args":["--tls=7000","--port=8080"],"ports":[{"containerPort":7000}]`, "--tls=7000"},
	{"a URL", `"args":["--listen=https://0.0.0.0:7000,http://127.0.0.1:7001"],"ports":[{"containerPort":7000}]`, "--listen=https://0.0.0.0:7000"},
	{"a URL of somebody else", `"args":["--backend=https://shop:7000","--issuer=https://localhost:7000"],"ports":[{"containerPort":7000}]`, ""},
	{"a variable", `"env":[{"name":"HTTPS_PORT","value":"7000"}],"ports":[{"containerPort":7000}]`, "HTTPS_PORT=7000"},
	{"variables of URLs", `"env":[{"name":"ASPNETCORE_URLS","value":"http://+:5000;https://+:5001"}],"ports":[{"containerPort":5001}]`, "https://+:5001"},
	{"the plain one of them", `"env":[{"name":"ASPNETCORE_URLS","value":"http://+:5000;https://+:5001"}],"ports":[{"containerPort":5000}]`, ""},
	{"a flag against TLS", `"args":["--insecure-port=8443"],"ports":[{"containerPort":8443}]`, ""},
	{"a flag for HTTP on a database's number", `"args":["--http-port=6379"],"ports":[{"containerPort":6379}]`, ""},
	{"a name before a flag", `"args":["--https-port=8080"],"ports":[{"containerPort":8080,"name":"http"}]`, ""},
	{"a flag that is no port", `"args":["--https-timeout=8080","--tls-max=8080"],"ports":[{"containerPort":8080}]`, ""},
	{"a flag for metrics", `"args":["--metrics-bind-address=:8080"],"ports":[{"containerPort":8080}]`, "is not for requests: --metrics-bind-address=:8080 names it"},
	{"a flag for health, which a probe asks", `"args":["--health-probe-bind-address=:8081"],"ports":[{"containerPort":8081}],"readinessProbe":{"httpGet":{"port":8081}}`, "is not for requests"},
	{"health on the port that serves", `"args":["--port=8080"],"env":[{"name":"HEALTH_PORT","value":"8080"}],"ports":[{"containerPort":8080}]`, ""},
	{"metrics on a port called http", `"args":["--metrics-addr=:8080"],"ports":[{"containerPort":8080,"name":"http"}]`, ""},
	{"a relay of bytes", `"args":["tcp-listen:10000,fork","unix-connect:/x"],"ports":[{"containerPort":10000}]`, "tcp-listen:10000 names it"},

	{"a certificate and its key", pairOfFlags + `,"ports":[{"containerPort":8001,"name":"xds"},{"containerPort":8000,"name":"metrics"}]`, "port xds (8001) of container app is for TLS: --tls-cert-file configures TLS"},
	{"the same on a usual port", pairOfFlags + `,"ports":[{"containerPort":8080}]`, "is for TLS"},
	{"the same beside the port of HTTPS", pairOfFlags + `,"ports":[{"containerPort":8443},{"containerPort":8080}]`, ""},
	{"the same beside a port by name", pairOfFlags + `,"ports":[{"containerPort":7000,"name":"web-tls"},{"containerPort":7001}]`, ""},
	{"the same where a probe asks by HTTP", pairOfFlags + `,"ports":[{"containerPort":8080}],"livenessProbe":{"httpGet":{"port":8080}}`, ""},
	{"a certificate alone", `"args":["--tls-cert-file=/c/tls.crt"],"ports":[{"containerPort":8080}]`, ""},
	{"a folder of certificates", `"args":["--cert-dir=/c/serving"],"ports":[{"containerPort":8080}]`, "--cert-dir"},
	{"certificates of a client", `"args":["--client-cert=/c/tls.crt","--client-key=/c/tls.key","--etcd-certfile=/c/a","--etcd-keyfile=/c/b","--db-ssl-cert=/a/b","--db-ssl-key=/a/c"],"ports":[{"containerPort":8080}]`, ""},
	{"a Secret by its name", `"args":["--default-ssl-certificate=shop/tls","--key=shop"],"ports":[{"containerPort":8080}]`, ""},
	{"certificates in variables", `"env":[{"name":"TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"TLS_KEY_FILE","value":"/c/tls.key"}],"ports":[{"containerPort":8080}]`, "TLS_CERT_FILE"},
	{"a client's in variables", `"env":[{"name":"TEMPORAL_TLS_CERT","value":"/c/tls.crt"},{"name":"TEMPORAL_TLS_KEY","value":"/c/tls.key"}],"ports":[{"containerPort":8080}]`, ""},
	{"TLS that a variable turns on", `"env":[{"name":"SERVER_SSL_ENABLED","value":"true"}],"ports":[{"containerPort":8080}]`, "SERVER_SSL_ENABLED"},
	{"TLS that a variable turns off", `"env":[{"name":"SERVER_SSL_ENABLED","value":"false"}],"ports":[{"containerPort":8080}]`, ""},
	{"TLS of a database that is turned on", `"env":[{"name":"MYSQL_SSL_ENABLED","value":"true"}],"ports":[{"containerPort":8080}]`, ""},

	{"a variable with the certificate of a server", `"env":[{"name":"REGISTRY_HTTP_TLS_CERTIFICATE","value":"/c/tls.crt"},{"name":"REGISTRY_HTTP_TLS_KEY","value":"/c/tls.key"}],"ports":[{"containerPort":5000}]`, "REGISTRY_HTTP_TLS_CERTIFICATE configures TLS"},
	{"a variable with a list of certificates", `"env":[{"name":"QUARKUS_HTTP_SSL_CERTIFICATE_FILES","value":"/c/tls.crt"}],"ports":[{"containerPort":8080}]`, "QUARKUS_HTTP_SSL_CERTIFICATE_FILES configures TLS"},
	{"a variable with a key store", `"env":[{"name":"SERVER_SSL_KEY_STORE","value":"classpath:shop.p12"}],"ports":[{"containerPort":8080}]`, "SERVER_SSL_KEY_STORE configures TLS"},
	{"variables with the scheme and the certificate", `"env":[{"name":"GF_SERVER_PROTOCOL","value":"https"},{"name":"GF_SERVER_CERT_FILE","value":"/c/tls.crt"}],"ports":[{"containerPort":3000}]`, "GF_SERVER_CERT_FILE configures TLS"},
	{"a variable with the scheme of a URL", `"env":[{"name":"PROTOCOL","value":"https"},{"name":"WEB_SCHEME","value":"https"}],"ports":[{"containerPort":8080}]`, ""},
	{"variables with the certificates of clients", `"env":[{"name":"HTTP_CLIENT_TLS_CERT","value":"/c/tls.crt"},{"name":"HTTP_CLIENT_TLS_KEY","value":"/c/tls.key"},{"name":"DB_SSL_CERT","value":"/c/x"},{"name":"DB_SSL_KEY","value":"/c/y"}],"ports":[{"containerPort":8080}]`, ""},
	{"a variable with the certificates of authorities", `"env":[{"name":"HTTPS_CA_CERT_FILE","value":"/c/x"},{"name":"SERVER_SSL_CERT","value":"/c/ca.crt"},{"name":"SSL_CERT_FILE","value":"/c/x"},{"name":"SSL_CERT_DIR","value":"/c"},{"name":"SERVER_SSL_TRUST_STORE","value":"/c/x.p12"}],"ports":[{"containerPort":8080}]`, ""},
	{"a variable with the port for management", `"env":[{"name":"MANAGEMENT_SERVER_PORT","value":"8081"}],"ports":[{"containerPort":8081}]`, "MANAGEMENT_SERVER_PORT=8081"},

	{"flags in a variable", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"--bind 0.0.0.0:8443 --certfile /c/tls.crt --keyfile /c/tls.key"}],"ports":[{"containerPort":8443}]`, "8443 is a port of HTTPS"},
	{"flags in a variable and another port", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"--bind=0.0.0.0:8000 --certfile=/c/tls.crt --keyfile=/c/tls.key"}],"ports":[{"containerPort":8000}]`, "--certfile configures TLS"},
	{"flags in a variable without a certificate", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"--bind 0.0.0.0:8443 --workers 4"}],"ports":[{"containerPort":8443}]`, ""},
	{"flags in a variable with a loopback address", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"--bind 127.0.0.1:8000"}],"ports":[{"containerPort":8000,"name":"http"}]`, "listens on the loopback address only"},
	{"a number of TLS in a flag and a certificate without a key", `"args":["--bind=0.0.0.0:8443","--certfile=/c/both.pem"],"ports":[{"containerPort":8443}]`, "8443 is a port of HTTPS"},

	{"variables with the name of the container", `"env":[{"name":"APP_TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"APP_TLS_KEY_FILE","value":"/c/tls.key"}],"ports":[{"containerPort":8200}]`, "APP_TLS_CERT_FILE configures TLS"},
	{"variables with the name of the image", `"image":"registry.example:5000/vault-server:1@sha256:aa","env":[{"name":"VAULT_TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"VAULT_TLS_KEY_FILE","value":"/c/tls.key"}],"ports":[{"containerPort":8200}]`, "VAULT_TLS_CERT_FILE configures TLS"},
	{"a variable with the name of the image that enables TLS", `"image":"shop-web","env":[{"name":"SHOP_WEB_TLS_ENABLED","value":"true"}],"ports":[{"containerPort":8200}]`, "SHOP_WEB_TLS_ENABLED configures TLS"},
	{"a variable with the name of the image, which is that of any server", `"image":"web","env":[{"name":"WEB_TLS_CERT","value":"/c/tls.crt"}],"ports":[{"containerPort":8200}]`, "WEB_TLS_CERT configures TLS"},
	{"variables with the name of another server", `"image":"vault-agent","env":[{"name":"VAULT_TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"VAULT_TLS_KEY_FILE","value":"/c/tls.key"}],"ports":[{"containerPort":8200}]`, ""},
	{"variables with the name of the image and a server that it calls", `"image":"shop","env":[{"name":"SHOP_REDIS_TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"SHOP_REDIS_TLS_KEY_FILE","value":"/c/tls.key"},{"name":"SHOP_CLIENT_CERT","value":"/c/x"},{"name":"SHOP_CLIENT_KEY","value":"/c/y"}],"ports":[{"containerPort":8200}]`, ""},

	{"gRPC by its name and a certificate", pairOfFlags + `,"ports":[{"containerPort":7000,"name":"grpc"}]`, "--tls-cert-file configures TLS"},
	{"gRPC by its name and a mounted certificate", mounted("/etc/app/tls") + `,"ports":[{"containerPort":7000,"name":"grpc"}]`, "mounts a certificate"},
	{"gRPC next to a port for TLS", pairOfFlags + `,"ports":[{"containerPort":7000,"name":"grpc"},{"containerPort":8443}]`, ""},
	{"a number of TLS in a flag without a certificate", `"args":["--address=:9443"],"ports":[{"containerPort":9443}]`, ""},
	{"the same with a certificate", `"args":["--address=:9443","--tls-cert-file=/c/x","--tls-key-file=/c/y"],"ports":[{"containerPort":9443}]`, "9443 is a port of HTTPS"},
	{"a certificate that is mounted", mounted("/etc/app/tls") + `,"ports":[{"containerPort":50051}]`, "the container mounts a certificate at /etc/app/tls"},
	{"a mounted certificate and a common number", mounted("/etc/app/certs") + `,"ports":[{"containerPort":5000}]`, "the container mounts a certificate at /etc/app/certs"},
	{"a mounted certificate and a name of HTTP", mounted("/etc/app/certs") + `,"ports":[{"containerPort":8080,"name":"http"}]`, ""},
	{"the same beside the port of HTTPS", mounted("/etc/nginx/ssl") + `,"ports":[{"containerPort":50051},{"containerPort":443}]`, ""},
	{"one of two ports", mounted("/etc/app/tls") + `,"ports":[{"containerPort":7000},{"containerPort":7001,"name":"http"}]`, ""},
	{"certificates of authorities", mounted("/etc/ssl/certs") + `,"ports":[{"containerPort":7000}]`, ""},
	{"a database's", mounted("/etc/mysql/tls") + `,"ports":[{"containerPort":7000}]`, ""},
	{"other secrets", mounted("/etc/app/tokens") + `,"ports":[{"containerPort":7000}]`, ""},

	{"a command that asks by HTTPS", `"readinessProbe":{"exec":{"command":["curl","-k","https://localhost:9200/"]}},"ports":[{"containerPort":9200}]`, "the readiness probe uses HTTPS"},
	{"a command that asks by HTTP", `"livenessProbe":{"exec":{"command":["sh","-c","wget -qO- http://127.0.0.1:6379/up"]}},"ports":[{"containerPort":6379}]`, ""},
	{"a command that asks another host", `"readinessProbe":{"exec":{"command":["curl","https://shop:7000/"]}},"ports":[{"containerPort":7000}]`, ""},
	{"gRPC's health probe", `"readinessProbe":{"exec":{"command":["/bin/grpc_health_probe","-addr=:9092"]}},"ports":[{"containerPort":9092}]`, ""},
	{"the same over TLS", `"readinessProbe":{"exec":{"command":["/bin/grpc_health_probe","-addr=:7000","-tls"]}},"ports":[{"containerPort":7000}]`, "gRPC over TLS"},

	{"a number that ends with 443", `"ports":[{"containerPort":10443}]`, "10443 is a port of HTTPS"},
	{"such a number for HTTP", `"ports":[{"containerPort":10443,"name":"http"}]`, ""},
	{"a webhook's name", `"ports":[{"containerPort":9876,"name":"webhook-server"}]`, "its name is webhook-server"},
}

// What a port speaks is often said by a flag, a variable, a probe's command or a certificate.
func TestFlagsAndCertificatesSayWhatAPortSpeaks(t *testing.T) {
	for _, c := range hinted {
		pod := `{"metadata":{},"spec":{"volumes":[{"name":"v","secret":{"secretName":"x"}}],"containers":[{"name":"app",` + c.container + `}]}}`
		wantNotHTTP(t, c.fact, Inject(parse(t, pod), nil), c.why)
	}
}

// A certificate that a Service asks for is one with which its pods serve.
func TestAServiceThatAsksForACertificateSaysTLS(t *testing.T) {
	ports := portsOf(t, `"name":"shop","annotations":{"service.beta.openshift.io/serving-cert-secret-name":"x"}`, `{"port":8080}`)
	for container, reason := range map[string]string{`"ports":[{"containerPort":8080}]`: NotHTTP, `"ports":[{"containerPort":8080,"name":"http"}]`: "", `"ports":[{"containerPort":8080},{"containerPort":8443}]`: ""} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"app",`+container+`}]}}`), nil, ports...)
		harness.Equal(t, out.Reason, reason, container, out.Verdict, out.Text)
	}
}

// Each of ten thousand ports was compared with all that the commands of probes say: minutes.
func TestManyPortsAndLongCommandsAreReadOnce(t *testing.T) {
	long, err := json.Marshal(strings.Repeat("redis https:/ x ", 50_000))
	harness.NoError(t, err)
	pod := `{"metadata":{},"spec":{"containers":[{"name":"app","args":[` + string(long) + `],"readinessProbe":{"exec":{"command":[` + string(long) + `]}},"ports":[{"containerPort":8080,"name":"http"}` +
		strings.Repeat(`,{"containerPort":9}`, 10_000) + `]}]}}`
	pod = strings.Replace(pod, `"name":"app",`, `"name":"app","image":`+string(long)+`,"livenessProbe":{"httpGet":{"port":"http","path":`+string(long)+`}},`, 1)
	if out := Inject(parse(t, pod), nil); out.Verdict != Injected && out.Verdict != Refused {
		t.Errorf("got %s (%s): %.200s; want a verdict", out.Verdict, out.Reason, out.Text)
	}
}

func TestMountedKeyIsEvidenceForTLS(t *testing.T) {
	const secret = `"secret":{"secretName":"x"}`
	for _, c := range []struct {
		name, mount, volume string
		want                Verdict
	}{
		{"a keystore", "/etc/app/keystore", secret, Skipped},
		{"a file of a keystore", "/etc/app/keystore.p12", secret, Skipped},
		{"a truststore", "/etc/app/truststore", secret, Injected},
		{"items", "/etc/app", `"secret":{"secretName":"x","items":[{"key":"tls.crt","path":"tls.crt"},{"key":"tls.key","path":"tls.key"}]}`, Skipped},
		{"a projected item", "/etc/app", `"projected":{"sources":[{"secret":{"name":"x","items":[{"key":"a","path":"tls.key"}]}}]}`, Skipped},
		{"an item of an authority", "/etc/app", `"secret":{"secretName":"x","items":[{"key":"ca.crt","path":"ca.crt"}]}`, Injected},
		{"items of a client", "/etc/client", `"secret":{"secretName":"x","items":[{"key":"tls.key","path":"tls.key"}]}`, Injected},
	} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"a","ports":[{"containerPort":7000}],"volumeMounts":[{"name":"files","mountPath":"`+c.mount+`"}]}],"volumes":[{"name":"files",`+c.volume+`}]}}`), nil)
		if out.Verdict != c.want {
			t.Errorf("%s: got %s (%s), want %s", c.name, verdictOf(out), out.Text, c.want)
		}
	}
}
