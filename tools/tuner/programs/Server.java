import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** A server with a live cache that is replaced all the time: each answer makes garbage. Arguments: PORT [LIVE_MB] */
public final class Server {
    /** An entry of the cache takes about this much of the heap. */
    private static final int ENTRY_BYTES = 1_100;

    private static final AtomicLong STATE = new AtomicLong(88172645463325252L);

    /** Weyl sequence and a mixer: the same numbers in every run, from any thread. */
    private static long next() {
        long z = STATE.addAndGet(0x9E3779B97F4A7C15L);
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        return (z ^ (z >>> 27)) & Long.MAX_VALUE;
    }

    public static void main(String[] arguments) throws Exception {
        // Without it each answer waits for the client's acknowledgement.
        System.setProperty("sun.net.httpserver.nodelay", "true");
        int port = Integer.parseInt(arguments[0]);
        int live = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 60;
        int count = Math.max(1, live * 1_000_000 / ENTRY_BYTES);
        ConcurrentHashMap<Integer, byte[]> cache = new ConcurrentHashMap<>(count);
        for (int key = 0; key < count; key++) {
            cache.put(key, new byte[1_024]);
        }
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 128);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", exchange -> {
            StringBuilder answer = new StringBuilder();
            for (int change = 0; change < 60; change++) {
                int key = (int) (next() % count);
                byte[] entry = new byte[1_024];
                entry[0] = (byte) key;
                cache.put(key, entry);
                answer.append("entry ").append(key).append(' ').append(next()).append('\n');
            }
            byte[] bytes = answer.toString().getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, bytes.length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> server.stop(0)));
        server.start();
        System.out.println("ready");
    }
}
