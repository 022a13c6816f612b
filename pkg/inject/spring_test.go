package inject

import (
	"strings"
	"testing"

	"github.com/queue-proxy/queue-proxy/test/harness"
)

// springContainers contains fields of containers that have a port named http. why is the reason why the port is not
// selected, or empty if it is.
var springContainers = []struct{ name, container, why string }{
	{"system property", `"command":["java","-Dserver.ssl.key-store=/c/shop.p12","-jar","shop.jar"]`, "-Dserver.ssl.key-store configures TLS"},
	{"system property in camel case", `"command":["java","-Dserver.ssl.keyStore=classpath:shop.p12"]`, "-Dserver.ssl.keyStore configures TLS"},
	{"system property that enables TLS", `"args":["-Dserver.ssl.enabled=true"]`, "-Dserver.ssl.enabled configures TLS"},
	{"system property in a script", `"command":["sh","-c","exec java -Dserver.ssl.bundle=shop -jar shop.jar"]`, "-Dserver.ssl.bundle configures TLS"},
	{"argument with a bundle", `"args":["--server.ssl.bundle=shop"]`, "--server.ssl.bundle configures TLS"},
	{"argument with a key store", `"args":["--server.ssl.key-store=/c/shop.p12"]`, "--server.ssl.key-store configures TLS"},
	{"argument with a certificate", `"args":["--server.ssl.certificate=classpath:shop.crt"]`, "--server.ssl.certificate configures TLS"},
	{"argument that enables TLS", `"args":["--server.ssl.enabled=true"]`, "--server.ssl.enabled configures TLS"},
	{"argument that disables TLS", `"args":["--server.ssl.enabled=false","--server.ssl.key-store=/c/shop.p12"]`, ""},
	{"argument with a trust store", `"args":["--server.ssl.trust-store=/c/ca.p12"]`, ""},
	{"JAVA_TOOL_OPTIONS", `"env":[{"name":"JAVA_TOOL_OPTIONS","value":"-Xmx512m -Dserver.ssl.key-store=/c/shop.p12"}]`, "-Dserver.ssl.key-store configures TLS"},
	{"JAVA_OPTS", `"env":[{"name":"JAVA_OPTS","value":"-Dserver.ssl.enabled=true"}]`, "-Dserver.ssl.enabled configures TLS"},
	{"JDK_JAVA_OPTIONS", `"env":[{"name":"JDK_JAVA_OPTIONS","value":"-Dserver.ssl.bundle=shop"}]`, "-Dserver.ssl.bundle configures TLS"},
	{"long JAVA_OPTS", `"env":[{"name":"JAVA_OPTS","value":"` + strings.Repeat("-Da.long.property=value ", 40) + `-Dserver.ssl.bundle=shop"}]`, "-Dserver.ssl.bundle configures TLS"},
	{"JAVA_OPTS that disable TLS", `"env":[{"name":"JAVA_OPTS","value":"-Dserver.ssl.enabled=false"},{"name":"SERVER_SSL_KEY_STORE","value":"/c/shop.p12"}]`, ""},
	{"SERVER_SSL_BUNDLE", `"env":[{"name":"SERVER_SSL_BUNDLE","value":"shop"}]`, "SERVER_SSL_BUNDLE configures TLS"},
	{"SERVER_SSL_KEY_STORE", `"env":[{"name":"SERVER_SSL_KEY_STORE","value":"shop.p12"}]`, "SERVER_SSL_KEY_STORE configures TLS"},
	{"SERVER_SSL_KEYSTORE", `"env":[{"name":"SERVER_SSL_KEYSTORE","value":"/c/shop.p12"}]`, "SERVER_SSL_KEYSTORE configures TLS"},
	{"SERVER_SSL_CERTIFICATE", `"env":[{"name":"SERVER_SSL_CERTIFICATE","value":"/c/shop.crt"}]`, "SERVER_SSL_CERTIFICATE configures TLS"},
	{"SERVER_SSL_ENABLED", `"env":[{"name":"SERVER_SSL_ENABLED","value":"true"}]`, "SERVER_SSL_ENABLED configures TLS"},
	{"variable in lower case", `"env":[{"name":"server.ssl.enabled","value":"true"}]`, "server.ssl.enabled configures TLS"},
	{"password in a Secret", `"env":[{"name":"SERVER_SSL_KEY_STORE_PASSWORD","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]`, "SERVER_SSL_KEY_STORE_PASSWORD configures TLS"},
	{"text of a certificate", `"env":[{"name":"SERVER_SSL_CERTIFICATE","value":"` + strings.Repeat("x", 5000) + `"}]`, "SERVER_SSL_CERTIFICATE configures TLS"},
	{"empty variable", `"env":[{"name":"SERVER_SSL_KEY_STORE","value":""}]`, ""},
	{"variable that disables TLS", `"env":[{"name":"SERVER_SSL_ENABLED","value":"false"},{"name":"SERVER_SSL_KEY_STORE","value":"/c/shop.p12"},{"name":"SERVER_SSL_CERT_FILE","value":"/c/x"}]`, ""},
	{"argument overrides variable", `"args":["--server.ssl.enabled=true"],"env":[{"name":"SERVER_SSL_ENABLED","value":"false"}]`, "--server.ssl.enabled configures TLS"},
	{"SPRING_APPLICATION_JSON", `"env":[{"name":"SPRING_APPLICATION_JSON","value":"{\"server\":{\"ssl\":{\"key-store\":\"/c/shop.p12\"}}}"}]`, "server.ssl.key-store of SPRING_APPLICATION_JSON configures TLS"},
	{"SPRING_APPLICATION_JSON with flat keys", `"env":[{"name":"SPRING_APPLICATION_JSON","value":"{\"server.ssl.enabled\":true}"}]`, "server.ssl.enabled of SPRING_APPLICATION_JSON configures TLS"},
	{"SPRING_APPLICATION_JSON that disables TLS", `"env":[{"name":"SPRING_APPLICATION_JSON","value":"{\"server\":{\"ssl\":{\"enabled\":false}}}"},{"name":"SERVER_SSL_BUNDLE","value":"shop"}]`, ""},
	{"empty values in SPRING_APPLICATION_JSON", `"env":[{"name":"SPRING_APPLICATION_JSON","value":"{\"server.ssl\":{\"bundle\":\"\",\"key-store\":null}}"}]`, ""},
	{"list in SPRING_APPLICATION_JSON", `"env":[{"name":"SPRING_APPLICATION_JSON","value":"{\"server.ssl\":{\"ciphers\":[\"a\",\"b\"]}}"}]`, "server.ssl.ciphers of SPRING_APPLICATION_JSON configures TLS"},
	{"invalid SPRING_APPLICATION_JSON", `"env":[{"name":"SPRING_APPLICATION_JSON","value":"{server.ssl.enabled: true"}]`, ""},
	{"TLS of the port for management", `"env":[{"name":"MANAGEMENT_SERVER_SSL_ENABLED","value":"true"},{"name":"MANAGEMENT_SERVER_SSL_KEY_STORE","value":"/c/shop.p12"},{"name":"MANAGEMENT_SERVER_PORT","value":"9000"}]`, ""},
	{"TLS of a client", `"args":["-Djavax.net.ssl.keyStore=/c/x.p12","-Djavax.net.ssl.trustStore=/c/y.p12"],"env":[{"name":"SPRING_SSL_BUNDLE_JKS_DB_KEYSTORE_LOCATION","value":"/c/z.jks"}]`, ""},
	{"TLS and a probe over HTTP", `"args":["--server.ssl.bundle=shop"],"livenessProbe":{"httpGet":{"port":8080}}`, ""},
	{"TLS on another port", `"args":["--server.ssl.bundle=shop","--server.port=9000"]`, ""},
	{"TLS on the port in JAVA_OPTS", `"args":["--server.ssl.bundle=shop"],"env":[{"name":"JAVA_OPTS","value":"-Dserver.port=8080"},{"name":"SERVER_PORT","value":"9000"}]`, "--server.ssl.bundle configures TLS"},
}

func TestSpringPropertiesConfigureTLS(t *testing.T) {
	for _, c := range springContainers {
		pod := `{"metadata":{},"spec":{"containers":[{"name":"shop","image":"shop:1",` + c.container + `,"ports":[{"name":"http","containerPort":8080}]}]}}`
		wantNotHTTP(t, c.name, Inject(parse(t, pod), nil), c.why)
		// A Service that offers the port as port 80 must not change the result.
		wantNotHTTP(t, c.name+" with a Service", Inject(parse(t, strings.Replace(pod, `"name":"http",`, "", 1)), nil, portsOf(t, `"name":"shop"`, `{"name":"http","port":80,"targetPort":8080}`)...), c.why)
	}
}

func TestSpringPropertiesSelectThePort(t *testing.T) {
	const tls = `"env":[{"name":"SERVER_SSL_ENABLED","value":"true"}]`
	for _, c := range []struct {
		name, container, want string // want contains the verdict and the port
	}{
		{"-Dserver.port", `"args":["-Dserver.port=8090"]`, "injected 8090"},
		{"--server.port", `"args":["--server.port=8090"]`, "injected 8090"},
		{"SERVER_PORT", `"env":[{"name":"SERVER_PORT","value":"8090"}]`, "injected 8090"},
		{"JAVA_TOOL_OPTIONS", `"env":[{"name":"JAVA_TOOL_OPTIONS","value":"-Xmx1g -Dserver.port=8090"}]`, "injected 8090"},
		{"SPRING_APPLICATION_JSON", `"env":[{"name":"SPRING_APPLICATION_JSON","value":"{\"server\":{\"port\":8090},\"management\":{\"server\":{\"port\":9000}}}"}]`, "injected 8090"},
		{"port of a proxy", `"args":["-Dserver.port=8090","-Dhttp.proxyPort=3128","-Dhttps.proxyPort=8090"]`, "injected 8090"},
		{"ports of a proxy only", `"ports":[{"containerPort":8080}],"env":[{"name":"JAVA_OPTS","value":"-Dhttps.proxyHost=p -Dhttps.proxyPort=8080"}]`, "injected 8080"},
		{"port for management", `"args":["-Dmanagement.server.port=9000"],"ports":[{"containerPort":8080},{"containerPort":9000}]`, "injected 8080"},
		{"port with TLS", `"args":["-Dserver.port=8090","-Dserver.ssl.bundle=shop"]`, "skipped not-http 0"},
		{"TLS on the default port", tls + `,"ports":[{"containerPort":8080,"name":"http"},{"containerPort":9000,"name":"grpc"}]`, "injected 9000"},
		{"TLS on the only port", tls + `,"ports":[{"containerPort":5601,"name":"http"},{"containerPort":9000,"name":"metrics"}]`, "skipped not-http 0"},
		{"TLS on the port with an HTTP name", tls + `,"ports":[{"containerPort":7000,"name":"http"},{"containerPort":9000,"name":"grpc"}]`, "injected 9000"},
		{"TLS on an unknown port", tls + `,"ports":[{"containerPort":7000,"name":"a"},{"containerPort":7001,"name":"b"}]`, "refused which-port 0"},
		{"TLS next to a port of TLS", tls + `,"ports":[{"containerPort":8080,"name":"http"},{"containerPort":8443,"name":"https"}]`, "injected 8080"},
		{"no TLS on a port of TLS", `"env":[{"name":"SERVER_SSL_ENABLED","value":"false"}],"ports":[{"containerPort":8443,"name":"https"}]`, "injected 8443"},
	} {
		out := Inject(parse(t, `{"metadata":{},"spec":{"containers":[{"name":"shop","image":"shop:1",`+c.container+`}]}}`), nil)
		harness.Equal(t, verdictOf(out)+" "+decimal(out.AppPort), c.want, c.name, out.Text)
	}
}
