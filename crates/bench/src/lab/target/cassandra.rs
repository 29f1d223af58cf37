//! Cassandra 5 from its library on Maven Central, with the options that Cassandra's scripts would
//! give. It stands in for ScyllaDB, which has the same protocol and data model.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::catalogue::{Missing, Recipe};
use super::places::{INSTALL, Places, Programs, is_program};
use super::ready::Protocol;
use super::sandbox::{Sandbox, text_of};
use super::server::first_line;
use super::start_plan::{ConfigFile, Setting, StartPlan};
use crate::Result;
use crate::wire::{Cql, Wire};

/// Where Debian installs a directory for each Java runtime.
const JVM: &str = "/usr/lib/jvm";
/// How the names of Java 17's directories begin. Cassandra 5.0 supports no newer Java.
const JAVA: &str = "java-17-";
/// Packages of the Java library that Java must export to Cassandra's code.
const EXPORTS: [&str; 7] = [
    "java.base/jdk.internal.misc",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
];
const OPENS: [&str; 13] = [
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.util",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
];
/// The configuration of the log: warnings go to the standard output, which the lab keeps.
const LOGGING: &str = r#"<configuration>
<appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%date %level %logger{1} %msg%n</pattern></encoder>
</appender>
<root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>"#;

/// Cassandra with one way to sync the commit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cassandra {
    Batch,
    Periodic,
    /// As `Periodic`, with many rows in each partition, as ScyllaDB needed in the article.
    Grouped,
}

/// Number of partitions of grouped rows.
const PARTITIONS: u32 = 1000;

impl Recipe for Cassandra {
    fn find(&self, places: &Places) -> std::result::Result<Programs, Missing> {
        let missing = |why: String| Missing { why, install: INSTALL.into() };
        let java = java_17().or_else(|| places.program("java"));
        let java = java.ok_or_else(|| missing("there is no Java runtime".into()))?;
        let jars = places.peer("cassandra");
        let jars = jars.filter(|jars| jar(jars, "cassandra-all-").is_some());
        match jars {
            Some(jars) => Ok(Programs::with(java, jars)),
            None => Err(missing(format!("{}/cassandra has no jars", places.peers.display()))),
        }
    }

    fn version(&self, programs: &Programs) -> Result<String> {
        let class_path = format!("{}/*", jars(programs).display());
        first_line(&programs.server, &["-cp", &class_path, "org.apache.cassandra.tools.GetVersion"])
    }

    fn plan(&self, programs: &Programs, sandbox: &Sandbox, ports: [u16; 2]) -> Result<StartPlan> {
        let files = vec![
            ConfigFile {
                path: sandbox.dir.join("cassandra.yaml"),
                settings: self.yaml(sandbox, ports),
            },
            ConfigFile {
                path: sandbox.dir.join("logback.xml"),
                settings: vec![Setting::plain([LOGGING])],
            },
        ];
        let mut plan = StartPlan::new(programs.server.clone(), java_settings(programs, sandbox)?);
        plan.directories.push(sandbox.dir.join("tmp"));
        plan.files = files;
        plan.patience = Duration::from_secs(120);
        Ok(plan)
    }

    fn overhead(&self, sandbox: &Sandbox) -> u64 {
        // The heap has a minimum size. Classes, threads and buffers lie outside the heap.
        512 + heap(sandbox)
    }

    fn growth(&self, _sandbox: &Sandbox) -> u64 {
        // The heap is touched at the start, but classes and compiled code grow later.
        64
    }

    fn protocol(&self) -> Protocol {
        Protocol::Cql
    }

    fn wire(&self, _sandbox: &Sandbox) -> Option<Arc<dyn Wire>> {
        Some(Arc::new(match self {
            Cassandra::Batch | Cassandra::Periodic => Cql::new(),
            Cassandra::Grouped => Cql::partitioned(PARTITIONS),
        }))
    }
}

impl Cassandra {
    fn yaml(self, sandbox: &Sandbox, [port, storage_port]: [u16; 2]) -> Vec<Setting> {
        let mut lines = vec![
            Setting::plain(["cluster_name: bench"]),
            Setting::plain(["partitioner: org.apache.cassandra.dht.Murmur3Partitioner"]),
            Setting::plain(["listen_address: 127.0.0.1"]),
            Setting::plain(["rpc_address: 127.0.0.1"]),
            Setting::plain([format!("storage_port: {storage_port}")]),
            Setting::plain([format!("native_transport_port: {port}")]),
            Setting::plain(["endpoint_snitch: SimpleSnitch"]),
            Setting::plain([format!(
                "seed_provider: [{{class_name: org.apache.cassandra.locator.SimpleSeedProvider, \
                 parameters: [{{seeds: \"127.0.0.1:{storage_port}\"}}]}}]"
            )]),
            Setting::new(["num_tokens: 1"], "one node owns all data"),
            Setting::new(
                ["memtable: {configurations: {default: {class_name: TrieMemtable}}}"],
                "as in cassandra_latest.yaml, for new users who want the most performance",
            ),
            Setting::new(
                ["memtable_allocation_type: offheap_objects"],
                "as in cassandra_latest.yaml",
            ),
            Setting::new(["sstable: {selected_format: bti}"], "as in cassandra_latest.yaml"),
            Setting::new(["storage_compatibility_mode: NONE"], "as in cassandra_latest.yaml"),
            Setting::new(
                [format!("memtable_offheap_space: {}MiB", share(sandbox.memory, 4))],
                "a quarter of memory",
            ),
            Setting::new(
                [format!("file_cache_size: {}MiB", share(sandbox.memory, 8).min(512))],
                "an eighth of memory, at most the default",
            ),
        ];
        match self {
            Cassandra::Batch => lines.push(Setting::new(
                ["commitlog_sync: batch"],
                "a write is acknowledged after the commit log is synced",
            )),
            Cassandra::Periodic | Cassandra::Grouped => {
                lines.push(Setting::new(["commitlog_sync: periodic"], "the default"));
                lines.push(Setting::new(["commitlog_sync_period: 10000ms"], "the default"));
            }
        }
        lines
    }
}

/// Returns the size of the heap in MiB: half of the sandbox's memory, but at least 512, which
/// Cassandra needs.
fn heap(sandbox: &Sandbox) -> u64 {
    share(sandbox.memory, 2).max(512)
}

fn java_settings(programs: &Programs, sandbox: &Sandbox) -> Result<Vec<Setting>> {
    let jars = jars(programs);
    let heap = heap(sandbox);
    let path = |name: &str| sandbox.path(name);
    let mut settings = vec![
        Setting::new(
            [format!("-Xms{heap}M"), format!("-Xmx{heap}M")],
            "half of memory; the rest holds memtables, buffers and the page cache",
        ),
        Setting::new(
            ["-XX:+AlwaysPreTouch"],
            "as in its own options; the heap is held before the page cache is bounded",
        ),
        Setting::new(["-XX:+UseG1GC", "-XX:+ParallelRefProcEnabled"], "as in its own options"),
        Setting::new(["-XX:MaxGCPauseMillis=300"], "as in its own options"),
        // Without these options, Java would leave files in /tmp.
        Setting::plain(["-XX:+PerfDisableSharedMem".to_owned(), tmpdir(sandbox)?]),
        Setting::plain(["-Xss256k"]),
    ];
    if let Some(agent) = jar(jars, "jamm-") {
        settings.push(Setting::plain([format!("-javaagent:{}", text_of(&agent)?)]));
    }
    let all = |package: &str| format!("{package}=ALL-UNNAMED");
    let exports = EXPORTS.iter().flat_map(|package| ["--add-exports".into(), all(package)]);
    let opens = OPENS.iter().flat_map(|package| ["--add-opens".into(), all(package)]);
    settings.push(Setting::plain(exports.chain(opens)));
    settings.push(Setting::plain(["-Djdk.attach.allowAttachSelf=true"]));
    settings.push(Setting::plain(["-Dio.netty.tryReflectionSetAccessible=true"]));
    settings.push(Setting::plain([
        "-Dcassandra-foreground=yes".to_owned(),
        format!("-Dcassandra.config=file://{}", path("cassandra.yaml")?),
        format!("-Dcassandra.storagedir={}", path("storage")?),
        format!("-Dlogback.configurationFile={}", path("logback.xml")?),
        // There is no other node to wait for.
        "-Dcassandra.skip_wait_for_gossip_to_settle=0".to_owned(),
    ]));
    settings.push(Setting::plain(["-cp".to_owned(), format!("{}/*", text_of(jars)?)]));
    settings.push(Setting::plain(["org.apache.cassandra.service.CassandraDaemon"]));
    Ok(settings)
}

/// Returns the option that keeps the temporary files of Java in the server's directory.
pub(super) fn tmpdir(sandbox: &Sandbox) -> Result<String> {
    Ok(format!("-Djava.io.tmpdir={}", sandbox.path("tmp")?))
}

fn share(memory: u64, parts: u64) -> u64 {
    (memory / parts).max(32)
}

pub(super) fn jars(programs: &Programs) -> &Path {
    programs.companion.as_deref().unwrap_or(Path::new(""))
}

/// Finds a jar in `directory`. Its name is `prefix`, a version and `.jar`.
pub(super) fn jar(directory: &Path, prefix: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(directory).ok()?.flatten();
    files.map(|file| file.path()).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rest = name.strip_prefix(prefix).unwrap_or_default();
        rest.starts_with(|first: char| first.is_ascii_digit()) && rest.ends_with(".jar")
    })
}

fn java_17() -> Option<PathBuf> {
    let runtimes = std::fs::read_dir(JVM).ok()?.flatten();
    let mut runtimes = runtimes
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(JAVA)));
    runtimes.find_map(|entry| {
        let java = entry.path().join("bin/java");
        is_program(&java).then_some(java)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::target::tests::{line, sandbox};

    #[test]
    fn java_and_the_commit_log_are_configured() {
        let programs = Programs::with("/j/java".into(), "/jars".into());
        let sandbox = Sandbox { memory: 2048, ..sandbox() };
        let plan = |cassandra: Cassandra| cassandra.plan(&programs, &sandbox, [9, 10]).unwrap();
        let batch = plan(Cassandra::Batch);
        let text = line(&batch);
        assert!(
            text.starts_with("/j/java -Xms1024M -Xmx1024M -XX:+AlwaysPreTouch -XX:+UseG1GC"),
            "{text}"
        );
        assert!(text.contains("--add-opens java.base/sun.nio.ch=ALL-UNNAMED"));
        assert!(text.ends_with("-cp /jars/* org.apache.cassandra.service.CassandraDaemon"));
        let yaml = batch.files[0].text();
        assert!(yaml.contains("\nnative_transport_port: 9\n"));
        assert!(yaml.contains("{seeds: \"127.0.0.1:10\"}"));
        assert!(yaml.ends_with("\ncommitlog_sync: batch\n"));
        let periodic = plan(Cassandra::Periodic).files[0].text();
        assert!(periodic.ends_with("commitlog_sync: periodic\ncommitlog_sync_period: 10000ms\n"));
    }

    #[test]
    fn a_jar_is_told_from_its_neighbours() {
        let directory = std::env::temp_dir().join(format!("larder-jars-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for name in ["netty-all-4.jar", "netty-4.1.jar", "netty-5.txt"] {
            std::fs::write(directory.join(name), "").unwrap();
        }
        assert_eq!(jar(&directory, "netty-"), Some(directory.join("netty-4.1.jar")));
        assert_eq!(jar(&directory, "guava-"), None);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
