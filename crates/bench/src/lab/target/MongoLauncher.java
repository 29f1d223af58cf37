import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;

/** Runs mongo-java-server, which is a library, until the process is asked to end. */
public class MongoLauncher {
    public static void main(String[] arguments) throws InterruptedException {
        MongoServer server = new MongoServer(new MemoryBackend());
        server.bind("127.0.0.1", Integer.parseInt(arguments[0]));
        Thread.currentThread().join();
    }
}
