import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Sends the file body and prints the response. Usage: Client.java URL DIRECTORY, where DIRECTORY
 * contains body and tls.crt. HttpClient uses HTTP/2 over TLS, and HTTP/1.1 in plain text, because
 * it supports HTTP/2 in plain text only with Upgrade, which RFC 9113 has removed.
 */
class Client {
    public static void main(String[] args) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (FileInputStream in = new FileInputStream(args[1] + "/tls.crt")) {
            trusted.setCertificateEntry("server", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        HttpClient client = HttpClient.newBuilder().sslContext(context).build();
        HttpRequest request = HttpRequest.newBuilder(URI.create(args[0]))
            .expectContinue(true)
            .POST(HttpRequest.BodyPublishers.ofFile(Path.of(args[1], "body")))
            .build();
        HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.version() + " " + answer.body());
    }
}
