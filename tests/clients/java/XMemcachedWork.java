// Uses xmemcached as an application does: every verb, through its public API, in both protocols.
// usage: java -cp JARS XMemcachedWork.java HOST:PORT

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import net.rubyeye.xmemcached.CASOperation;
import net.rubyeye.xmemcached.Counter;
import net.rubyeye.xmemcached.GetsResponse;
import net.rubyeye.xmemcached.MemcachedClient;
import net.rubyeye.xmemcached.XMemcachedClientBuilder;
import net.rubyeye.xmemcached.command.BinaryCommandFactory;
import net.rubyeye.xmemcached.command.TextCommandFactory;
import net.rubyeye.xmemcached.utils.AddrUtil;

public class XMemcachedWork {
  private static boolean failed = false;

  private interface Body {
    void run() throws Exception;
  }

  private static void check(String name, Body body) {
    try {
      body.run();
      System.out.println("ok " + name);
    } catch (Throwable error) {
      failed = true;
      System.out.println("FAIL " + name + ": " + String.valueOf(error).replace('\n', ' '));
    }
  }

  private static void equal(Object got, Object wanted) {
    if (!Objects.equals(got, wanted)) {
      throw new IllegalStateException("got " + got + ", wanted " + wanted);
    }
  }

  private static void stores(String label, MemcachedClient client) {
    check(label + " get of a missing key", () -> equal(client.get("missing"), null));
    check(label + " set and get", () -> {
      equal(client.set("a", 600, "value"), true);
      equal(client.get("a"), "value");
    });
    check(label + " objects", () -> {
      HashMap<String, Integer> map = new HashMap<>(Map.of("one", 1, "two", 2));
      equal(client.set("object", 0, map), true);
      equal(client.get("object"), map);
    });
    check(label + " value of 900,000 bytes", () -> {
      byte[] bytes = new byte[900_000];
      Arrays.fill(bytes, (byte) 7);
      client.set("big", 0, bytes, 10_000);
      equal(Arrays.equals((byte[]) client.get("big", 10_000), bytes), true);
    });
    check(label + " add and replace", () -> {
      client.delete("b");
      equal(client.replace("b", 0, "no"), false);
      equal(client.add("b", 0, "first"), true);
      equal(client.add("b", 0, "second"), false);
      equal(client.replace("b", 0, "third"), true);
      equal(client.get("b"), "third");
    });
    check(label + " append and prepend", () -> {
      client.set("c", 0, "middle");
      equal(client.append("c", ">"), true);
      equal(client.prepend("c", "<"), true);
      equal(client.get("c"), "<middle>");
    });
    check(label + " set without a reply", () -> {
      client.setWithNoReply("quiet", 0, "said");
      equal(client.get("quiet"), "said");
    });
    check(label + " delete", () -> {
      equal(client.delete("c"), true);
      equal(client.delete("c"), false);
      equal(client.get("c"), null);
    });
  }

  private static void reads(String label, MemcachedClient client) {
    check(label + " get of 1000 keys, half of them missing", () -> {
      String[] keys = new String[1000];
      for (int i = 0; i < keys.length; i++) {
        keys[i] = "many:" + i;
        if (i % 2 == 0) {
          client.setWithNoReply(keys[i], 0, i);
        }
      }
      Map<String, Integer> found = client.get(List.of(keys));
      equal(found.size(), 500);
      equal(found.get("many:998"), 998);
    });
    check(label + " gets and cas", () -> {
      client.set("d", 0, "old");
      GetsResponse<String> seen = client.gets("d");
      equal(client.cas("d", 0, "new", seen.getCas()), true);
      equal(client.cas("d", 0, "newer", seen.getCas()), false);
      equal(client.get("d"), "new");
    });
    check(label + " touch, and get and touch", () -> {
      client.set("e", 1000, "kept");
      equal(client.touch("e", 500), true);
      equal(client.touch("missing", 500), false);
      if (label.equals("binary")) {
        equal(client.getAndTouch("e", 500), "kept");
      }
    });
    check(label + " what has expired is gone", () -> {
      // A number above 30 days is an absolute time. This one is in the past.
      client.set("f", 2_592_001, "gone");
      equal(client.get("f"), null);
    });
  }

  private static void counts(String label, MemcachedClient client) {
    check(label + " incr and decr, with and without an initial value", () -> {
      client.delete("n");
      equal(client.incr("n", 5, 10), 10L);
      equal(client.incr("n", 5, 10), 15L);
      equal(client.decr("n", 6, 0), 9L);
      equal(client.decr("n", 100, 0), 0L);
    });
    check(label + " counter", () -> {
      Counter counter = client.getCounter("counter", 7);
      equal(counter.incrementAndGet(), 8L);
      equal(counter.addAndGet(-3), 5L);
      counter.set(0);
      equal(counter.get(), 0L);
    });
    check(label + " four threads lose no compare-and-set", () -> {
      client.set("shared", 0, 0);
      CASOperation<Integer> next = new CASOperation<>() {
        public int getMaxTries() {
          return Integer.MAX_VALUE;
        }

        public Integer getNewValue(long cas, Integer value) {
          return value + 1;
        }
      };
      ExecutorService pool = Executors.newFixedThreadPool(4);
      Future<?>[] all = new Future<?>[4];
      for (int i = 0; i < all.length; i++) {
        all[i] = pool.submit(() -> {
          for (int n = 0; n < 50; n++) {
            equal(client.cas("shared", 0, next), true);
          }
          return null;
        });
      }
      for (Future<?> one : all) {
        one.get();
      }
      pool.shutdown();
      equal(client.get("shared"), 200);
    });
  }

  private static void administers(String label, MemcachedClient client) {
    check(label + " version and stats", () -> {
      equal(client.getVersions().values().iterator().next().startsWith("1.6."), true);
      equal(client.getStats().values().iterator().next().containsKey("curr_items"), true);
    });
    check(label + " namespace and flush_all", () -> {
      client.withNamespace("ns", inside -> inside.set("k", 0, "in"));
      equal(client.get("k"), null);
      client.flushAll();
      equal(client.get("a"), null);
    });
  }

  private static void exercise(String label, XMemcachedClientBuilder builder) throws Exception {
    // All requests use one connection, so a get is executed after the sets without reply that
    // precede it.
    builder.setConnectionPoolSize(1);
    builder.setOpTimeout(10_000);
    MemcachedClient client = builder.build();
    stores(label, client);
    reads(label, client);
    counts(label, client);
    administers(label, client);
    client.shutdown();
  }

  public static void main(String[] arguments) throws Exception {
    String address = arguments[0];
    XMemcachedClientBuilder text = new XMemcachedClientBuilder(AddrUtil.getAddresses(address));
    text.setCommandFactory(new TextCommandFactory());
    exercise("text", text);
    XMemcachedClientBuilder binary = new XMemcachedClientBuilder(AddrUtil.getAddresses(address));
    binary.setCommandFactory(new BinaryCommandFactory());
    exercise("binary", binary);
    System.exit(failed ? 1 : 0);
  }
}
