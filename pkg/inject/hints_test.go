package inject

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// mounted returns the JSON of a volume mount at a path.
func mounted(path string) string { return `"volumeMounts":[{"name":"v","mountPath":"` + path + `"}]` }

const pairOfFlags = `"args":["--tls-cert-file=/c/tls.crt","--tls-private-key-file=/c/tls.key"]`

var hinted = []struct{ fact, container, why string }{ // why is empty if the pod is injected
	{"a flag for HTTPS", `"args":["--https-address=:3000"],"ports":[{"containerPort":3000,"name":"oaproxy"}]`, "--https-address=:3000"},
	{"a flag for HTTPS of another port", `"args":["--https-address=:8443"],"ports":[{"containerPort":3000}]`, ""},
	{"a flag and its value as separate arguments", `"command":["serve"],"args":["--secure-listen-address","0.0.0.0:8080"],"ports":[{"containerPort":8080}]`, "--secure-listen-address=0.0.0.0:8080"},
	{"a flag in a shell command", `"command":["sh","-c","exec serve --tls-port '7000' --x"],"ports":[{"containerPort":7000}]`, "--tls-port=7000"},
	{"a flag in camel case", `"args":["-httpsPort=7000"],"ports":[{"containerPort":7000}]`, "-httpsPort=7000"},
	{"a flag with only a protocol", `"args":["--tls=7000","--port=8080"],"ports":[{"containerPort":7000}]`, "--tls=7000"},
	{"a URL", `"args":["--listen=https://0.0.0.0:7000,http://127.0.0.1:7001"],"ports":[{"containerPort":7000}]`, "--listen=https://0.0.0.0:7000"},
	{"a URL of another server", `"args":["--backend=https://shop:7000","--issuer=https://localhost:7000"],"ports":[{"containerPort":7000}]`, ""},
	{"a variable", `"env":[{"name":"HTTPS_PORT","value":"7000"}],"ports":[{"containerPort":7000}]`, "HTTPS_PORT=7000"},
	{"variables of URLs", `"env":[{"name":"ASPNETCORE_URLS","value":"http://+:5000;https://+:5001"}],"ports":[{"containerPort":5001}]`, "https://+:5001"},
	{"variables of URLs, the plain port", `"env":[{"name":"ASPNETCORE_URLS","value":"http://+:5000;https://+:5001"}],"ports":[{"containerPort":5000}]`, ""},
	{"a flag for an insecure port", `"args":["--insecure-port=8443"],"ports":[{"containerPort":8443}]`, ""},
	{"a flag for HTTP on the port number of a database", `"args":["--http-port=6379"],"ports":[{"containerPort":6379}]`, ""},
	{"a port name overrides a flag", `"args":["--https-port=8080"],"ports":[{"containerPort":8080,"name":"http"}]`, ""},
	{"a flag that contains no port", `"args":["--https-timeout=8080","--tls-max=8080"],"ports":[{"containerPort":8080}]`, ""},
	{"a flag for metrics", `"args":["--metrics-bind-address=:8080"],"ports":[{"containerPort":8080}]`, "is not for requests: --metrics-bind-address=:8080 contains the port"},
	{"a flag for the port of a health probe", `"args":["--health-probe-bind-address=:8081"],"ports":[{"containerPort":8081}],"readinessProbe":{"httpGet":{"port":8081}}`, "is not for requests"},
	{"health checks on the port for requests", `"args":["--port=8080"],"env":[{"name":"HEALTH_PORT","value":"8080"}],"ports":[{"containerPort":8080}]`, ""},
	{"metrics on a port named http", `"args":["--metrics-addr=:8080"],"ports":[{"containerPort":8080,"name":"http"}]`, ""},
	{"a TCP relay", `"args":["tcp-listen:10000,fork","unix-connect:/x"],"ports":[{"containerPort":10000}]`, "tcp-listen:10000 contains the port"},

	{"a certificate and its key", pairOfFlags + `,"ports":[{"containerPort":8001,"name":"xds"},{"containerPort":8000,"name":"metrics"}]`, "port xds (8001) of container app is for TLS: --tls-cert-file configures TLS"},
	{"a certificate and its key on a common port", pairOfFlags + `,"ports":[{"containerPort":8080}]`, "is for TLS"},
	{"a certificate and its key next to an HTTPS port", pairOfFlags + `,"ports":[{"containerPort":8443},{"containerPort":8080}]`, ""},
	{"a certificate and its key next to a port named web-tls", pairOfFlags + `,"ports":[{"containerPort":7000,"name":"web-tls"},{"containerPort":7001}]`, ""},
	{"a certificate and its key with an HTTP probe", pairOfFlags + `,"ports":[{"containerPort":8080}],"livenessProbe":{"httpGet":{"port":8080}}`, ""},
	{"a certificate without a key", `"args":["--tls-cert-file=/c/tls.crt"],"ports":[{"containerPort":8080}]`, ""},
	{"a directory of certificates", `"args":["--cert-dir=/c/serving"],"ports":[{"containerPort":8080}]`, "--cert-dir"},
	{"certificates of a client", `"args":["--client-cert=/c/tls.crt","--client-key=/c/tls.key","--etcd-certfile=/c/a","--etcd-keyfile=/c/b","--db-ssl-cert=/a/b","--db-ssl-key=/a/c"],"ports":[{"containerPort":8080}]`, ""},
	{"a Secret name", `"args":["--default-ssl-certificate=shop/tls","--key=shop"],"ports":[{"containerPort":8080}]`, ""},
	{"certificates in variables", `"env":[{"name":"TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"TLS_KEY_FILE","value":"/c/tls.key"}],"ports":[{"containerPort":8080}]`, "TLS_CERT_FILE"},
	{"client certificates in variables", `"env":[{"name":"TEMPORAL_TLS_CERT","value":"/c/tls.crt"},{"name":"TEMPORAL_TLS_KEY","value":"/c/tls.key"}],"ports":[{"containerPort":8080}]`, ""},
	{"a variable that enables TLS", `"env":[{"name":"SERVER_SSL_ENABLED","value":"true"}],"ports":[{"containerPort":8080}]`, "SERVER_SSL_ENABLED"},
	{"a variable that disables TLS", `"env":[{"name":"SERVER_SSL_ENABLED","value":"false"}],"ports":[{"containerPort":8080}]`, ""},
	{"a variable that enables TLS for a database", `"env":[{"name":"MYSQL_SSL_ENABLED","value":"true"}],"ports":[{"containerPort":8080}]`, ""},

	{"a variable with the certificate of a server", `"env":[{"name":"REGISTRY_HTTP_TLS_CERTIFICATE","value":"/c/tls.crt"},{"name":"REGISTRY_HTTP_TLS_KEY","value":"/c/tls.key"}],"ports":[{"containerPort":5000}]`, "REGISTRY_HTTP_TLS_CERTIFICATE configures TLS"},
	{"a variable with a list of certificates", `"env":[{"name":"QUARKUS_HTTP_SSL_CERTIFICATE_FILES","value":"/c/tls.crt"}],"ports":[{"containerPort":8080}]`, "QUARKUS_HTTP_SSL_CERTIFICATE_FILES configures TLS"},
	{"a variable with a key store", `"env":[{"name":"SERVER_SSL_KEY_STORE","value":"classpath:shop.p12"}],"ports":[{"containerPort":8080}]`, "SERVER_SSL_KEY_STORE configures TLS"},
	{"variables with the scheme and the certificate", `"env":[{"name":"GF_SERVER_PROTOCOL","value":"https"},{"name":"GF_SERVER_CERT_FILE","value":"/c/tls.crt"}],"ports":[{"containerPort":3000}]`, "GF_SERVER_CERT_FILE configures TLS"},
	{"a variable with the scheme of a URL", `"env":[{"name":"PROTOCOL","value":"https"},{"name":"WEB_SCHEME","value":"https"}],"ports":[{"containerPort":8080}]`, ""},
	{"variables with the certificates of clients", `"env":[{"name":"HTTP_CLIENT_TLS_CERT","value":"/c/tls.crt"},{"name":"HTTP_CLIENT_TLS_KEY","value":"/c/tls.key"},{"name":"DB_SSL_CERT","value":"/c/x"},{"name":"DB_SSL_KEY","value":"/c/y"}],"ports":[{"containerPort":8080}]`, ""},
	{"a variable with the certificates of authorities", `"env":[{"name":"HTTPS_CA_CERT_FILE","value":"/c/x"},{"name":"SERVER_SSL_CERT","value":"/c/ca.crt"},{"name":"SSL_CERT_FILE","value":"/c/x"},{"name":"SSL_CERT_DIR","value":"/c"},{"name":"SERVER_SSL_TRUST_STORE","value":"/c/x.p12"}],"ports":[{"containerPort":8080}]`, ""},
	{"a mounted key store of a client", `"env":[{"name":"KAFKA_KEYSTORE_FILE","value":"/certs/client.jks"},{"name":"KAFKA_TRUSTSTORE_FILE","value":"/certs/ca.jks"}],` + mounted("/certs") + `,"ports":[{"containerPort":9000}]`, ""},
	{"a mounted key store of a client and a server", `"env":[{"name":"KAFKA_KEYSTORE_FILE","value":"/certs/client.jks"},{"name":"KEYSTORE_FILE","value":"/certs/x.jks"}],` + mounted("/certs") + `,"ports":[{"containerPort":9000}]`, "mounts a certificate at /certs"},
	{"a mounted key store that no variable names", `"env":[{"name":"KAFKA_KEYSTORE_FILE","value":"/certs-of-kafka/client.jks"}],` + mounted("/certs") + `,"ports":[{"containerPort":9000}]`, "mounts a certificate at /certs"},
	{"a mounted key store below a longer path", `"env":[{"name":"KAFKA_KEYSTORE_FILE","value":"/etc/kafka/certs/client.jks"}],` + mounted("/certs") + `,"ports":[{"containerPort":9000}]`, "mounts a certificate at /certs"},
	{"a mounted key store in a variable with the name of the container", `"image":"vault:1","env":[{"name":"VAULT_KEYSTORE","value":"/certs/x.jks"}],` + mounted("/certs") + `,"ports":[{"containerPort":9000}]`, "mounts a certificate at /certs"},
	{"a variable with the port for management", `"env":[{"name":"MANAGEMENT_SERVER_PORT","value":"8081"}],"ports":[{"containerPort":8081}]`, "MANAGEMENT_SERVER_PORT=8081"},

	{"flags in a variable", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"--bind 0.0.0.0:8443 --certfile /c/tls.crt --keyfile /c/tls.key"}],"ports":[{"containerPort":8443}]`, "8443 is a port of HTTPS"},
	{"flags in a variable and another port", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"--bind=0.0.0.0:8000 --certfile=/c/tls.crt --keyfile=/c/tls.key"}],"ports":[{"containerPort":8000}]`, "--certfile configures TLS"},
	{"flags in a variable without a certificate", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"--bind 0.0.0.0:8443 --workers 4"}],"ports":[{"containerPort":8443}]`, ""},
	{"flags in a variable with a loopback address", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"--bind 127.0.0.1:8000"}],"ports":[{"containerPort":8000,"name":"http"}]`, "listens on the loopback address only"},
	{"an HTTPS port number in a flag and a certificate without a key", `"args":["--bind=0.0.0.0:8443","--certfile=/c/both.pem"],"ports":[{"containerPort":8443}]`, "8443 is a port of HTTPS"},

	{"the flag -b of Gunicorn in a variable", `"env":[{"name":"GUNICORN_CMD_ARGS","value":"-b 127.0.0.1:8000"}],"ports":[{"containerPort":8000,"name":"http"}]`, "-b=127.0.0.1:8000 listens on the loopback address only"},
	{"the flag -b of another program", `"command":["kcat","-b","127.0.0.1:8000"],"ports":[{"containerPort":8000}]`, ""},
	{"the loopback address of the server of Django", `"command":["python","manage.py","runserver","127.0.0.1:8000"],"ports":[{"containerPort":8000}]`, "runserver=127.0.0.1:8000 listens on the loopback address only"},
	{"an address without a port", `"args":["--host","127.0.0.1","--port","8000"],"ports":[{"containerPort":8000}]`, ""},

	{"the key of Uvicorn", `"args":["--ssl-keyfile","/c/tls.key"],"ports":[{"containerPort":8000}]`, "--ssl-keyfile configures TLS"},
	{"the key of Uvicorn in a variable", `"env":[{"name":"SSL_KEYFILE","value":"/c/tls.key"}],"ports":[{"containerPort":8000}]`, "SSL_KEYFILE configures TLS"},
	{"the certificate of Uvicorn in variables", `"env":[{"name":"UVICORN_SSL_KEYFILE","value":"/c/tls.key"},{"name":"UVICORN_SSL_CERTFILE","value":"/c/tls.crt"}],"ports":[{"containerPort":8000}]`, "UVICORN_SSL_CERTFILE configures TLS"},
	{"the certificate of Kestrel", `"env":[{"name":"Kestrel__Certificates__Default__Path","value":"/c/x.pfx"}],"ports":[{"containerPort":8080}]`, "Kestrel__Certificates__Default__Path configures TLS"},
	{"the certificate of an endpoint of Kestrel", `"env":[{"name":"ASPNETCORE_Kestrel__Endpoints__Web__Certificate__Path","value":"/c/x.pfx"}],"ports":[{"containerPort":8080}]`, "ASPNETCORE_Kestrel__Endpoints__Web__Certificate__Path configures TLS"},
	{"the certificate of Kestrel and a port for HTTP", `"env":[{"name":"Kestrel__Certificates__Default__Path","value":"/c/x.pfx"},{"name":"ASPNETCORE_URLS","value":"http://+:8080"}],"ports":[{"containerPort":8080}]`, ""},
	{"the certificate of Kestrel and two ports", `"env":[{"name":"Kestrel__Certificates__Default__Path","value":"/c/x.pfx"},{"name":"ASPNETCORE_HTTPS_PORTS","value":"8081"}],"ports":[{"containerPort":8080},{"containerPort":8081}]`, ""},
	{"the port of Kestrel for HTTPS", `"env":[{"name":"ASPNETCORE_HTTPS_PORTS","value":"8080"}],"ports":[{"containerPort":8080}]`, "ASPNETCORE_HTTPS_PORTS=8080"},
	{"a key store of Quarkus", `"args":["-Dquarkus.http.ssl.certificate.key-store-file=/c/x.jks"],"ports":[{"containerPort":9000}]`, "-Dquarkus.http.ssl.certificate.key-store-file configures TLS"},
	{"a key store of Quarkus and two ports", `"env":[{"name":"QUARKUS_HTTP_SSL_CERTIFICATE_KEY_STORE_FILE","value":"/c/x.jks"}],"ports":[{"containerPort":8080},{"containerPort":8443}]`, ""},
	{"Quarkus without plain HTTP", `"env":[{"name":"QUARKUS_HTTP_INSECURE_REQUESTS","value":"disabled"}],"ports":[{"containerPort":8080,"name":"http"},{"containerPort":8443}]`, "QUARKUS_HTTP_INSECURE_REQUESTS=disabled disables plain HTTP"},
	{"Quarkus without plain HTTP on another port", `"args":["-Dquarkus.http.insecure-requests=disabled","-Dquarkus.http.port=9000"],"ports":[{"containerPort":9000,"name":"http"}]`, "-Dquarkus.http.insecure-requests=disabled"},
	{"Quarkus with plain HTTP", `"env":[{"name":"QUARKUS_HTTP_INSECURE_REQUESTS","value":"enabled"},{"name":"QUARKUS_HTTP_SSL_CERTIFICATE_FILES","value":"/c/x.pem"}],"ports":[{"containerPort":8080}]`, ""},
	{"Micronaut with TLS", `"env":[{"name":"MICRONAUT_SERVER_SSL_ENABLED","value":"true"}],"ports":[{"containerPort":8080,"name":"http"}]`, "MICRONAUT_SERVER_SSL_ENABLED configures TLS"},
	{"Micronaut with TLS on another port", `"args":["-Dmicronaut.ssl.enabled=true","-Dmicronaut.server.ssl.port=9000"],"ports":[{"containerPort":9000,"name":"http"}]`, "-Dmicronaut.ssl.enabled configures TLS"},
	{"Micronaut without TLS", `"env":[{"name":"MICRONAUT_SERVER_SSL_ENABLED","value":"false"}],"ports":[{"containerPort":8080}]`, ""},
	{"Micronaut with both protocols", `"env":[{"name":"MICRONAUT_SERVER_SSL_ENABLED","value":"true"},{"name":"MICRONAUT_SERVER_DUAL_PROTOCOL","value":"true"}],"ports":[{"containerPort":8080},{"containerPort":8443}]`, ""},
	{"properties of Spring Boot as JSON in an argument", `"args":["--spring.application.json={\"server\": {\"ssl\": {\"bundle\": \"x\"}}}"],"ports":[{"containerPort":8080,"name":"http"}]`, "server.ssl.bundle of --spring.application.json configures TLS"},
	{"properties of Spring Boot as JSON in a script", `"command":["sh","-c","exec java -Dspring.application.json='{\"server.ssl.enabled\": true}' -jar x.jar"],"ports":[{"containerPort":8080,"name":"http"}]`, "server.ssl.enabled of -Dspring.application.json configures TLS"},
	{"properties of Spring Boot as escaped JSON in a script", `"command":["sh","-c","java -jar x.jar \"--spring.application.json={\\\"server.ssl.enabled\\\":true}\""],"ports":[{"containerPort":8080,"name":"http"}]`, "server.ssl.enabled of"},
	{"other properties of Spring Boot as JSON in an argument", `"args":["--spring.application.json={\"server\":{\"port\":8080}}"],"ports":[{"containerPort":8080}]`, ""},

	{"variables with the name of the container", `"env":[{"name":"APP_TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"APP_TLS_KEY_FILE","value":"/c/tls.key"}],"ports":[{"containerPort":8200}]`, "APP_TLS_CERT_FILE configures TLS"},
	{"variables with the name of the image", `"image":"registry.example:5000/vault-server:1@sha256:aa","env":[{"name":"VAULT_TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"VAULT_TLS_KEY_FILE","value":"/c/tls.key"}],"ports":[{"containerPort":8200}]`, "VAULT_TLS_CERT_FILE configures TLS"},
	{"a variable with the name of the image that enables TLS", `"image":"shop-web","env":[{"name":"SHOP_WEB_TLS_ENABLED","value":"true"}],"ports":[{"containerPort":8200}]`, "SHOP_WEB_TLS_ENABLED configures TLS"},
	{"a variable with the name of the image, which is a general word", `"image":"web","env":[{"name":"WEB_TLS_CERT","value":"/c/tls.crt"}],"ports":[{"containerPort":8200}]`, "WEB_TLS_CERT configures TLS"},
	{"variables with the name of another server", `"image":"vault-agent","env":[{"name":"VAULT_TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"VAULT_TLS_KEY_FILE","value":"/c/tls.key"}],"ports":[{"containerPort":8200}]`, ""},
	{"variables with the name of the image and a server that it calls", `"image":"shop","env":[{"name":"SHOP_REDIS_TLS_CERT_FILE","value":"/c/tls.crt"},{"name":"SHOP_REDIS_TLS_KEY_FILE","value":"/c/tls.key"},{"name":"SHOP_CLIENT_CERT","value":"/c/x"},{"name":"SHOP_CLIENT_KEY","value":"/c/y"}],"ports":[{"containerPort":8200}]`, ""},

	{"a port named grpc and a certificate", pairOfFlags + `,"ports":[{"containerPort":7000,"name":"grpc"}]`, "--tls-cert-file configures TLS"},
	{"a port named grpc and a mounted certificate", mounted("/etc/app/tls") + `,"ports":[{"containerPort":7000,"name":"grpc"}]`, "mounts a certificate"},
	{"gRPC next to a port for TLS", pairOfFlags + `,"ports":[{"containerPort":7000,"name":"grpc"},{"containerPort":8443}]`, ""},
	{"an HTTPS port number in a flag without a certificate", `"args":["--address=:9443"],"ports":[{"containerPort":9443}]`, ""},
	{"an HTTPS port number in a flag with a certificate", `"args":["--address=:9443","--tls-cert-file=/c/x","--tls-key-file=/c/y"],"ports":[{"containerPort":9443}]`, "9443 is a port of HTTPS"},
	{"a mounted certificate", mounted("/etc/app/tls") + `,"ports":[{"containerPort":50051}]`, "the container mounts a certificate at /etc/app/tls"},
	{"a mounted certificate and a common number", mounted("/etc/app/certs") + `,"ports":[{"containerPort":5000}]`, "the container mounts a certificate at /etc/app/certs"},
	{"a mounted certificate and an HTTP port name", mounted("/etc/app/certs") + `,"ports":[{"containerPort":8080,"name":"http"}]`, ""},
	{"a mounted certificate next to an HTTPS port", mounted("/etc/nginx/ssl") + `,"ports":[{"containerPort":50051},{"containerPort":443}]`, ""},
	{"a mounted certificate and two ports", mounted("/etc/app/tls") + `,"ports":[{"containerPort":7000},{"containerPort":7001,"name":"http"}]`, ""},
	{"a mounted certificate and a probe that uses HTTPS on another port", mounted("/etc/app/tls") + `,"ports":[{"containerPort":7000}],"readinessProbe":{"httpGet":{"port":7001,"scheme":"HTTPS"}}`, ""},
	{"certificates of authorities", mounted("/etc/ssl/certs") + `,"ports":[{"containerPort":7000}]`, ""},
	{"a mounted certificate of a database", mounted("/etc/mysql/tls") + `,"ports":[{"containerPort":7000}]`, ""},
	{"a mounted Secret without a certificate", mounted("/etc/app/tokens") + `,"ports":[{"containerPort":7000}]`, ""},

	{"a probe command with an HTTPS URL", `"readinessProbe":{"exec":{"command":["curl","-k","https://localhost:9200/"]}},"ports":[{"containerPort":9200}]`, "the readiness probe uses HTTPS"},
	{"a probe command with an HTTP URL", `"livenessProbe":{"exec":{"command":["sh","-c","wget -qO- http://127.0.0.1:6379/up"]}},"ports":[{"containerPort":6379}]`, ""},
	{"a probe command with another host", `"readinessProbe":{"exec":{"command":["curl","https://shop:7000/"]}},"ports":[{"containerPort":7000}]`, ""},
	{"grpc_health_probe", `"readinessProbe":{"exec":{"command":["/bin/grpc_health_probe","-addr=:9092"]}},"ports":[{"containerPort":9092}]`, ""},
	{"grpc_health_probe over TLS", `"readinessProbe":{"exec":{"command":["/bin/grpc_health_probe","-addr=:7000","-tls"]}},"ports":[{"containerPort":7000}]`, "gRPC over TLS"},

	{"a number that ends with 443", `"ports":[{"containerPort":10443}]`, "10443 is a port of HTTPS"},
	{"a port named http whose number ends with 443", `"ports":[{"containerPort":10443,"name":"http"}]`, ""},
	{"the port name of a webhook", `"ports":[{"containerPort":9876,"name":"webhook-server"}]`, "the port name is webhook-server"},
}

// Flags, variables, probe commands and certificates are evidence for the protocol of a port.
func TestFlagsAndCertificatesIndicateProtocol(t *testing.T) {
	for _, c := range hinted {
		pod := `{"metadata":{},"spec":{"volumes":[{"name":"v","secret":{"secretName":"x"}}],"containers":[{"name":"app",` + c.container + `}]}}`
		wantNotHTTP(t, c.fact, Inject(parse(t, pod), nil), c.why)
	}
}

// A Service can request a certificate for its pods, which is evidence that the pods serve
// TLS.
func TestServingCertificateIndicatesTLS(t *testing.T) {
	ports := portsOf(t, `"name":"shop","annotations":{"service.beta.openshift.io/serving-cert-secret-name":"x"}`, `{"port":8080}`)
	for container, reason := range map[string]string{`"ports":[{"containerPort":8080}]`: NotHTTP, `"ports":[{"containerPort":8080,"name":"http"}]`: "", `"ports":[{"containerPort":8080},{"containerPort":8443}]`: ""} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"app",`+container+`}]}}`), nil, ports...)
		harness.Equal(t, out.Reason, reason, container, out.Verdict, out.Text)
	}
}

// The cost must be linear. If each port were compared with each probe command, the
// injection of this pod would take minutes.
func TestPortsAndCommandsAreReadInLinearTime(t *testing.T) {
	long, err := json.Marshal(strings.Repeat("redis https:/ x ", 50_000))
	harness.NoError(t, err)
	pod := `{"metadata":{},"spec":{"containers":[{"name":"app","args":[` + string(long) + `],"readinessProbe":{"exec":{"command":[` + string(long) + `]}},"ports":[{"containerPort":8080,"name":"http"}` +
		strings.Repeat(`,{"containerPort":9}`, 10_000) + `]}]}}`
	pod = strings.Replace(pod, `"name":"app",`, `"name":"app","image":`+string(long)+`,"livenessProbe":{"httpGet":{"port":"http","path":`+string(long)+`}},`, 1)
	if out := Inject(parse(t, pod), nil); out.Verdict != Injected && out.Verdict != Refused {
		t.Errorf("got %s (%s): %.200s, want injected or refused", out.Verdict, out.Reason, out.Text)
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
