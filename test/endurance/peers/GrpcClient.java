// Client of grpc-java: unary calls, and a short bidirectional stream every tenth call. Every
// eighth call is canceled.
// Usage: java GrpcClient.java --target=HOST:PORT --seconds=N --requests=N --workers=N --size=BYTES

import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.netty.NettyChannelBuilder;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;

public class GrpcClient {
  static final Metadata.Key<String> SUM = Metadata.Key.of("x-sum", Metadata.ASCII_STRING_MARSHALLER);
  static final Metadata.Key<String> REASON = Metadata.Key.of("proxy-status", Metadata.ASCII_STRING_MARSHALLER);
  static final int CHAT_MESSAGES = 10;
  static final long LONGEST_CALL = 30; // seconds
  static final long LONGEST_LOAD = 120; // seconds

  static final Map<String, String> options = new HashMap<>();
  static final Map<String, Integer> expected = new TreeMap<>();
  static final Map<String, Integer> failures = new TreeMap<>();
  static final long started = System.nanoTime();
  static long requests, bytes;

  // Raw passes messages as bytes.
  static class Raw implements MethodDescriptor.Marshaller<byte[]> {
    public InputStream stream(byte[] message) {
      return new ByteArrayInputStream(message);
    }

    public byte[] parse(InputStream in) {
      try {
        return in.readAllBytes();
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }

  static MethodDescriptor<byte[], byte[]> method(String name, MethodType type) {
    return MethodDescriptor.<byte[], byte[]>newBuilder(new Raw(), new Raw())
        .setFullMethodName("endurance.Peer/" + name).setType(type).build();
  }

  static final MethodDescriptor<byte[], byte[]> UNARY = method("Unary", MethodType.UNARY);
  static final MethodDescriptor<byte[], byte[]> CHAT = method("Chat", MethodType.BIDI_STREAMING);

  static int option(String name) {
    return Integer.parseInt(options.get(name));
  }

  static synchronized boolean more() {
    long elapsed = (System.nanoTime() - started) / 1_000_000_000;
    return elapsed < option("seconds") || requests < option("requests") && elapsed < LONGEST_LOAD;
  }

  static synchronized void count(String kind, Map<String, Integer> counts, long size) {
    requests++;
    if (kind == null) {
      bytes += size;
    } else {
      counts.merge(kind.replaceAll("\\d{4,}", "N").replaceAll("[\"\\\\\\p{Cntrl}]", " "), 1, Integer::sum);
    }
  }

  static byte[] content(int n, int size) {
    byte[] b = new byte[size];
    for (int i = 0; i < size; i++) {
      b[i] = (byte) (i * 31 + n);
    }
    return b;
  }

  // Call sends a message until it has received the given number of copies, and then half-closes
  // the stream.
  static class Call extends ClientCall.Listener<byte[]> {
    final CountDownLatch done = new CountDownLatch(1);
    final CRC32 sum = new CRC32();
    final ClientCall<byte[], byte[]> call;
    final byte[] message;
    final int copies;
    int received;
    String wrong;
    Status status;
    Metadata header = new Metadata(), trailer = new Metadata();

    Call(ClientCall<byte[], byte[]> call, byte[] message, int copies) {
      this.call = call;
      this.message = message;
      this.copies = copies;
    }

    void start() {
      call.start(this, new Metadata());
      call.request(copies + 1);
      send();
    }

    void send() {
      boolean last = received == copies - 1; // the response can arrive before sendMessage returns
      sum.update(message);
      call.sendMessage(message);
      if (last) {
        call.halfClose();
      }
    }

    @Override
    public void onHeaders(Metadata fields) {
      header = fields;
    }

    @Override
    public void onMessage(byte[] got) {
      received++;
      if (!Arrays.equals(got, message)) {
        wrong = "wrong content: " + got.length + " bytes";
      }
      if (received < copies) {
        send();
      }
    }

    @Override
    public void onClose(Status status, Metadata fields) {
      this.status = status;
      trailer = fields;
      done.countDown();
    }

    // failure describes the failure of the call. It returns null if there is none.
    String failure() {
      if (!status.isOk()) {
        Metadata fields = header.containsKey(REASON) ? header : trailer;
        return status.getCode() + ": " + status.getDescription() + " [Proxy-Status: " + fields.get(REASON) + "]";
      }
      if (wrong == null && received != copies) {
        return "wrong content: " + received + " messages";
      }
      if (wrong == null && !String.format("%08x", sum.getValue()).equals(trailer.get(SUM))) {
        return "missing or wrong trailer";
      }
      return wrong;
    }
  }

  // exchange makes the n-th call and counts its end.
  static void exchange(ManagedChannel channel, int n) throws InterruptedException {
    byte[] message = content(n, option("size"));
    boolean chat = n % 10 == 0;
    boolean canceled = !chat && n % 8 == 1;
    int copies = chat ? CHAT_MESSAGES : 1;
    CallOptions limits = CallOptions.DEFAULT.withDeadlineAfter(LONGEST_CALL, TimeUnit.SECONDS);
    Call c = new Call(channel.newCall(chat ? CHAT : UNARY, limits), message, copies);
    c.start();
    if (canceled && !c.done.await(ThreadLocalRandom.current().nextInt(5000), TimeUnit.MICROSECONDS)) {
      c.call.cancel("canceled by the load", null);
    }
    c.done.await();
    if (canceled && c.status.getCode() == Status.Code.CANCELLED) {
      count("CANCELLED", expected, 0);
    } else {
      count(c.failure(), failures, 2L * copies * message.length);
    }
  }

  static String json(Map<String, Integer> counts) {
    StringBuilder b = new StringBuilder();
    counts.forEach((kind, n) -> b.append(b.length() > 0 ? "," : "").append('"').append(kind).append("\":").append(n));
    return "{" + b + "}";
  }

  public static void main(String[] args) throws InterruptedException {
    for (String text : args) {
      String[] parts = text.substring(2).split("=", 2);
      options.put(parts[0], parts[1]);
    }
    ManagedChannel channel = NettyChannelBuilder.forTarget(options.get("target")).usePlaintext().disableRetry().build();
    Thread[] threads = new Thread[option("workers")];
    AtomicInteger next = new AtomicInteger();
    for (int i = 0; i < threads.length; i++) {
      threads[i] = new Thread(() -> {
        try {
          while (more()) {
            exchange(channel, next.getAndIncrement());
          }
        } catch (InterruptedException e) {
          Thread.currentThread().interrupt();
        }
      });
      threads[i].start();
    }
    for (Thread t : threads) {
      t.join();
    }
    channel.shutdownNow();
    System.out.printf("{\"requests\":%d,\"bytes\":%d,\"expected\":%s,\"failures\":%s}%n",
        requests, bytes, json(expected), json(failures));
    System.exit(0);
  }
}
