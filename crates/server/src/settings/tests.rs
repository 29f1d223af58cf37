use super::setting::{Group, Kind, Setting};
use super::*;
use larder_engine::WhenFull;
use std::path::PathBuf;
use std::time::Duration;

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn load(flavor: Flavor, args: &[&str], env: &[(&str, &str)]) -> Result<Settings, String> {
    let command = match flavor {
        Flavor::Larder => command(),
        Flavor::Memcached => memcached_command(),
    };
    let args = std::iter::once("larder").chain(args.iter().copied());
    let matches = command.try_get_matches_from(args).map_err(|error| error.to_string())?;
    from_matches(flavor, &matches, &environment(env)).map_err(|error| error.to_string())
}

fn larder(args: &[&str]) -> Result<Settings, String> {
    load(Flavor::Larder, args, &[])
}

fn memcached(line: &str) -> Result<Settings, String> {
    load(Flavor::Memcached, &line.split_whitespace().collect::<Vec<_>>(), &[])
}

fn shown(settings: &Settings) -> Vec<String> {
    settings.listen_addresses().iter().map(ToString::to_string).collect()
}

/// A configuration file. Dropping this value removes the file with its directory.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let directory =
            std::env::temp_dir().join(format!("larder-settings-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("larder.toml");
        std::fs::write(&path, text).unwrap();
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

#[test]
fn the_stronger_source_wins() {
    let file = File::new("precedence", "memory = 100\nthreads = 3\nport = 1100\nlog-level='warn'");
    let env = [("LARDER_MEMORY", "200MB"), ("LARDER_THREADS", "5")];
    let args = ["--config", file.path(), "-m", "300"];
    let settings = load(Flavor::Larder, &args, &env).unwrap();
    assert_eq!(settings.memory, 300 << 20);
    assert_eq!(settings.threads, 5);
    assert_eq!(settings.port, Port::Fixed(1100));
    assert_eq!(settings.max_connections, 1024);
    assert!(settings.is_given("port") && !settings.is_given("max-connections"));
}

#[test]
fn every_setting_can_come_from_flag_environment_and_file() {
    let value = |setting: &Setting| match setting.key {
        "listen" => "127.0.0.1:11300",
        "port" | "limit-port" | "max-reqs-per-event" | "listen-backlog" | "slab-min-size"
        | "napi-ids" => "12",
        "socket" => "/tmp/s",
        "socket-mode" => "600",
        "max-connections" | "threads" | "verbose" => "2",
        "idle-timeout" | "drain-timeout" => "7s",
        "protocol" => "auto",
        "io" => "epoll",
        "admin" => "127.0.0.1:1",
        "admin-host" => "cache.example",
        "admin-token-file" => "/tmp/t",
        "memory" => "100MB",
        "max-item-size" => "512KB",
        "when-full" => "refuse",
        "store" => "/data:64GB",
        "durability" => "none",
        "sync-interval" => "250ms",
        "slow-command" => "5ms",
        "prefix-delimiter" => "/",
        "user" => "nobody",
        "pidfile" => "/tmp/p",
        "log-level" => "warn",
        "log-format" => "json",
        "extended" => "idle_timeout=7",
        "udp-port" => "0",
        "slab-growth-factor" => "1.25",
        _ => "true",
    };
    for setting in table::all().filter(|s| s.group != Group::Refused) {
        let value = value(setting);
        // These settings are valid only together with `store`, so they are not tested here.
        if matches!(setting.key, "accept-damage" | "forget") {
            continue;
        }
        let from_env = load(Flavor::Larder, &[], &[(&setting.environment(), value)]);
        let from_env = from_env.unwrap_or_else(|error| panic!("{}: {error}", setting.key));
        let file = File::new(setting.key, &format!("{} = {value:?}", setting.key));
        let from_file = larder(&["--config", file.path()]).unwrap();
        let flag = format!("--{}", setting.key);
        let args: Vec<&str> = match setting.kind {
            Kind::Switch => vec![&flag],
            Kind::Count => vec![&flag, &flag],
            _ => vec![&flag, value],
        };
        let from_flag = larder(&args).unwrap();
        for settings in [&from_env, &from_file, &from_flag] {
            assert!(settings.is_given(setting.key), "{}", setting.key);
            if setting.is_shown() {
                assert_eq!((setting.show)(settings), value, "{}", setting.key);
            }
        }
    }
}

#[test]
fn shown_values_can_be_set() {
    let settings = Settings::default();
    for setting in table::all().filter(|setting| setting.is_shown()) {
        let text = (setting.show)(&settings);
        let result = (setting.set)(&mut Settings::default(), &text);
        // The text of an absent value is empty, and `set` may refuse it. Every other shown text
        // must be accepted.
        assert!(result.is_ok() || text.is_empty(), "{}: {text:?}: {result:?}", setting.key);
    }
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = table::all().map(|setting| setting.key).collect();
    names.extend(table::all().filter_map(|setting| setting.alias));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    command().debug_assert();
    memcached_command().debug_assert();
}

#[test]
fn errors_for_bad_values_name_the_flag_and_the_remedy() {
    let cases: &[(&[&str], &str)] = &[
        (&["-m", "64X"], "--memory: \"64X\" is not a size: write for example 64, 512MB or 2GB"),
        (&["-I", "2GB"], "--max-item-size: \"2GB\" is out of range: it must lie between 1k and"),
        (&["-I", "1000"], "between 1k and 1GB"),
        (&["-m", "64", "-I", "64m"], "more than half of --memory 64MB: raise --memory or lower"),
        (&["-p", "70000"], "--port: \"70000\" is not a port"),
        (&["-p", "-2"], "is not a port"),
        (&["-p", "0"], "nothing to listen on: give --listen ADDR:PORT, --port or --socket"),
        (&["-t", "0"], "--threads: \"0\" is not a whole number from 1"),
        (&["-c", "-5"], "--max-connections"),
        (&["-a", "999"], "--socket-mode: \"999\" is not a mode: write octal digits"),
        (&["-U", "11211"], "--udp-port: there is no UDP"),
        (&["-l", "tls:127.0.0.1"], "--listen: \"tls:127.0.0.1\": there is no TLS"),
        (&["-S"], "--enable-sasl: there is no authentication"),
        (&["-Y", "/etc/users"], "--auth-file: there is no authentication"),
        (&["-Z"], "--enable-ssl: there is no TLS"),
        (&["-e", "/mnt/file"], "--memory-file: memory is not kept in a file: give --store PATH"),
        (&["--store", "/a@hot"], "--store /a@hot: @hot is the only tier"),
        (
            &["--store", "/a@hot", "--store", "/b"],
            "--store /a@hot,/b: either all devices have a tier",
        ),
        (&["--forget", "x", "--store", "/a"], "--forget: \"x\" is not the number of a lane"),
        (&["--forget", "1"], "--forget is about a store: give --store"),
        (&["--store", "/a:big"], "--store: \"/a:big\": \"big\" is not a size"),
        (&["--durability", "sync"], "--durability sync needs something that lasts: give --store"),
        (&["--durability", "always"], "\"always\" is not one of none, async, sync"),
        (&["--sync-interval", "0"], "--sync-interval: \"0\" is no time: write for example 1s"),
        (&["--accept-damage"], "--accept-damage is about a store: give --store PATH"),
        (&["-o", "ext_path=/f"], "--extended: ext_path: \"/f\" has no size: write for example /f:"),
        (&["--store", "/a", "-o", "ext_path=/f:1G"], "ext_path: --store names a store already"),
        (&["--when-full", "panic"], "\"panic\" is not one of evict, refuse"),
        (&["--io", "kqueue"], "\"kqueue\" is not one of auto, uring, epoll"),
        (&["--admin", "on"], "--admin: \"on\" is not an address: write 127.0.0.1:11212, or off"),
        (&["--idle-timeout", "soon"], "\"soon\" is not a duration"),
        (&["--memroy", "1GB"], "--memory"),
        (
            &["-D", "::"],
            "--prefix-delimiter: \"::\" is not one ASCII character: write for example :",
        ),
        (&["-D", "é"], "is not one ASCII character"),
        (&["surplus"], "unexpected argument 'surplus'"),
    ];
    for (args, expected) in cases {
        let error = larder(args).expect_err("refused");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let error = load(Flavor::Larder, &[], &[("LARDER_MEMORY", "lots")]).unwrap_err();
    assert!(error.starts_with("LARDER_MEMORY: \"lots\" is not a size"), "{error}");
}

#[test]
fn errors_in_files_are_reported() {
    let cases = [
        ("unknown", "memroy = 64", "there is no setting \"memroy\": did you mean \"memory\"?"),
        ("underscore", "max_item_size = '1m'", "did you mean \"max-item-size\"?"),
        ("nothing", "zzz = 1", "there is no setting \"zzz\": `larder serve --help` lists them"),
        ("value", "memory = '1 elephant'", "larder.toml: memory: \"1 elephant\" is not a size"),
        ("table", "[memory]\nlimit = 1", "it must be a string, a number, true, false or a list"),
        ("syntax", "memory = ", "larder.toml: TOML parse error at line 1"),
        ("refused", "enable-ssl = true", "larder.toml: enable-ssl: there is no TLS"),
        ("limits", "limits = 1", "there is no setting \"limits\": did you mean \"limit\"?"),
        (
            "limit",
            "port = 1\n[[limit]]\nname = 'a'\nbudget = 'few'",
            "larder.toml: line 4: limit \"a\": budget: \"few\" is not a whole number",
        ),
        (
            "promise",
            "[[limit]]\nname = 'a'\nbudget = 1\ndurability = 'sync'",
            "limit \"a\": durability sync needs something that lasts: give --store PATH",
        ),
    ];
    for (name, text, expected) in cases {
        let file = File::new(name, text);
        let error = larder(&["--config", file.path()]).unwrap_err();
        assert!(error.contains(expected), "{name}: {error}");
    }
    let error = larder(&["--config", "/does/not/exist.toml"]).unwrap_err();
    assert!(error.contains("/does/not/exist.toml: cannot be read"), "{error}");
    let file = File::new("good", "listen = ['127.0.0.1', '[::1]:2']\nport = 1\ndaemon = false");
    assert_eq!(shown(&larder(&["--config", file.path()]).unwrap()), ["127.0.0.1", "[::1]:2"]);
}

#[test]
fn the_durability_of_a_policy_needs_a_store_that_lasts() {
    let file = File::new("lasts", "[[limit]]\nname = 'a'\nbudget = 1\ndurability = 'async'");
    let load = |flags: &[&str]| larder(&[&["--config", file.path()], flags].concat());
    assert_eq!(load(&["--store", "/s"]).unwrap().policies.len(), 1);
    for flags in [&[][..], &["--store", "/s", "--durability", "none"]] {
        let error = load(flags).unwrap_err();
        assert!(error.contains("durability async needs something that lasts"), "{error}");
    }
}

#[test]
fn lists_are_replaced_not_joined_across_sources() {
    let env = [("LARDER_LISTEN", "10.0.0.1,10.0.0.2")];
    assert_eq!(shown(&load(Flavor::Larder, &[], &env).unwrap()), ["10.0.0.1", "10.0.0.2"]);
    let args = ["-l", "127.0.0.1", "-l", "::1,127.0.0.2:5"];
    let settings = load(Flavor::Larder, &args, &env).unwrap();
    assert_eq!(shown(&settings), ["127.0.0.1", "::1", "127.0.0.2:5"]);
}

#[test]
fn variables_of_container_runtimes_are_harmless() {
    let env = [
        ("LARDER_PORT", "tcp://10.0.0.1:11211"),
        ("LARDER_PORT_11211_TCP_ADDR", "10.0.0.1"),
        ("LARDER_SERVICE_HOST", "10.0.0.1"),
        ("LARDER_MEMROY", "1GB"),
        ("HOME", "/root"),
    ];
    let settings = load(Flavor::Larder, &[], &env).unwrap();
    assert_eq!(settings.port, Port::Fixed(11211));
    assert_eq!(settings.notes.len(), 1);
    assert!(settings.notes[0].contains("did you mean LARDER_MEMORY?"), "{:?}", settings.notes);
}

#[test]
fn flags_determine_the_listen_addresses() {
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["127.0.0.1"]),
        (&["-p", "1"], &["127.0.0.1"]),
        (&["-s", "/s"], &[]),
        (&["-s", "/s", "-p", "1"], &["127.0.0.1"]),
        (&["-s", "/s", "-l", "::1"], &["::1"]),
        (&["-p", "0", "-l", "::1,[::1]:5"], &["[::1]:5"]),
    ];
    for (args, expected) in cases {
        assert_eq!(shown(&larder(args).unwrap()), *expected, "{args:?}");
    }
    assert_eq!(larder(&["-p", "-1"]).unwrap().port, Port::Any);
}

#[test]
fn a_store_is_durable_unless_memcached_would_forget_it() {
    let durability = |settings: Result<Settings, String>| settings.unwrap().durability();
    assert_eq!(durability(larder(&[])), Durability::None);
    assert_eq!(durability(larder(&["--store", "/s"])), Durability::Async);
    assert_eq!(durability(larder(&["--store", "/s", "--durability", "sync"])), Durability::Sync);
    assert_eq!(durability(larder(&["--store", "/s", "--durability", "none"])), Durability::None);
    let settings = memcached("-m 64 -o ext_path=/mnt/nvme:64G,ext_threads=2").unwrap();
    assert_eq!(settings.show_store(), "/mnt/nvme:64GB");
    assert_eq!(settings.notes.len(), 1, "{:?}", settings.notes);
    assert_eq!(durability(Ok(settings)), Durability::None);
    let asked = "-o ext_path=/mnt/nvme:64G --durability sync";
    assert_eq!(durability(memcached(asked)), Durability::Sync);
    let env = [("LARDER_EXTENDED", "ext_path=/a:1G")];
    let settings = load(Flavor::Memcached, &["-o", "ext_path=/b:2G"], &env).unwrap();
    assert_eq!(settings.show_store(), "/b:2GB");
    // The flag `--store` replaces an ext_path of the environment, and its durability too.
    for more in [&[][..], &["-o", "modern"]] {
        let flags = [&["--store", "/s"], more].concat();
        let settings = load(Flavor::Larder, &flags, &env).unwrap();
        assert_eq!(settings.show_store(), "/s", "{flags:?}");
        assert_eq!(settings.durability(), Durability::Async, "{flags:?}");
    }
    let flags = ["--store", "/s:1TB", "--sync-interval", "250ms", "--accept-damage"];
    let settings = larder(&flags).unwrap();
    assert!(settings.accept_damage);
    assert_eq!(settings.sync_interval, Duration::from_millis(250));
    assert_eq!(settings.store, [StorePath { path: "/s".into(), size: Some(1 << 40), tier: None }]);
}

#[test]
fn memcached_command_lines_are_understood() {
    let settings = memcached(
        "-d -P /run/memcached.pid -u memcache -m 1024 -p 11311 -l 10.0.0.5 -c 4096 -vv -U 0 \
         -R 20 -C -b 1024 -t 4 -I 2m -o modern,idle_timeout=60,hashpower=20 -f 1.25 -n 48 -L",
    )
    .unwrap();
    assert!(settings.daemon);
    assert_eq!(settings.pidfile, Some("/run/memcached.pid".into()));
    assert_eq!(settings.user.as_deref(), Some("memcache"));
    assert_eq!(settings.memory, 1 << 30);
    assert_eq!(settings.port, Port::Fixed(11311));
    assert_eq!(settings.max_connections, 4096);
    assert_eq!(settings.verbosity, 2);
    assert_eq!(settings.effective_log_level(), LogLevel::Trace);
    assert_eq!(settings.threads, 4);
    assert_eq!(settings.max_item_size, 2 << 20);
    assert_eq!(settings.idle_timeout, Some(Duration::from_secs(60)));
    assert_eq!(settings.admin, None);
    assert_eq!(shown(&settings), ["10.0.0.5"]);
    // One note each for -C, -R, -f, -n, -L, modern and hashpower.
    assert_eq!(settings.notes.len(), 7, "{:?}", settings.notes);
}

#[test]
fn memcached_long_flags_are_understood() {
    let settings = memcached(
        "--memory-limit=256 --conn-limit 100 --unix-socket=/s --unix-mask=770 --enable-shutdown \
         --disable-evictions --disable-flush-all --disable-dumping --max-item-size=1m",
    )
    .unwrap();
    assert_eq!(settings.memory, 256 << 20);
    assert_eq!(settings.max_connections, 100);
    assert_eq!(settings.socket, Some("/s".into()));
    assert_eq!(settings.socket_mode, 0o770);
    assert!(settings.switches.shutdown && !settings.switches.flush && !settings.switches.dump);
    assert_eq!(settings.when_full, WhenFull::Refuse);
}

#[test]
fn the_memcached_flavor_has_the_defaults_of_memcached() {
    let settings = memcached("").unwrap();
    assert_eq!(shown(&settings), ["*"]);
    assert_eq!(settings.admin, None);
    assert!(memcached("--admin 127.0.0.1:5 -m64 -p1 -vvv").unwrap().admin.is_some());
    // A Unix socket turns the network off even if a port is given.
    let settings = memcached("-s /s -p 5 -u root -o relaxed_privileges").unwrap();
    assert!(shown(&settings).is_empty());
    assert!(settings.notes.iter().any(|note| note.contains("-p and -l are ignored")));
    // The flags of memcached's test harness, followed by a word that is not a flag, are accepted.
    assert!(memcached("-l 127.0.0.1 -p 1 -U 27000 start").is_ok());
    let settings = memcached("-D /").unwrap();
    assert!(settings.detail && settings.prefix_delimiter == '/' && settings.notes.is_empty());
    assert!(memcached("-S").unwrap_err().starts_with("-S: there is no authentication"));
    let args = ["-m", " 64", "-D", ":"];
    assert_eq!(load(Flavor::Memcached, &args, &[]).unwrap().memory, 64 << 20);
}

#[test]
fn the_memcached_help_has_the_words_that_harnesses_search_for() {
    let help = memcached_help();
    assert!(help.starts_with("memcached 1.6.45\n"));
    assert!(help.contains("unix-socket"));
    for absent in ["sasl", "ext_path", "proxy_config", "enable-ssl", "no_drop_privileges"] {
        assert!(!help.to_lowercase().contains(absent), "{absent}");
    }
}

#[test]
fn the_short_help_fits_a_screen_and_shows_defaults() {
    let help = short_help();
    let widest = help.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80) && help.lines().count() <= 24, "{help}");
    for part in ["[127.0.0.1:11212]", "[64MB]", "[1MB]", "[1024]", "[evict]", "[11211]", "--help"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

#[test]
fn unusable_values_have_specific_messages() {
    for (args, said) in [
        (&["--store", "/data:0"][..], "a store has at least 2MB"),
        (&["--store", "/data:1MB"], "a store has at least 2MB"),
        (&["--store", "/data", "--forget", "40"], "those are 0 to 31"),
        (&["--admin", "11213"], "write 127.0.0.1:11213"),
        (&["--admin", ":11213"], "write 127.0.0.1:11213"),
        (&["--admin", "127.0.0.1:11211"], "is an address of the data port"),
        (&["--admin", "0.0.0.0:7000", "--listen", "10.0.0.1:7000"], "of the data port"),
        (&["--admin", "10.0.0.1:11211", "--listen", "*"], "of the data port"),
        (&["--limit-port", "11211"], "--limit-port 11211 is that of the data port"),
        (&["--limit-port", "7", "--listen", "127.0.0.1:7"], "is that of the data port"),
        (&["--limit-port", "11212"], "--limit-port 11212 is that of the admin page"),
        (&["--limit-port", "65536"], "\"65536\" is not a port"),
    ] {
        let error = load(Flavor::Larder, args, &[]).unwrap_err().to_string();
        assert!(error.contains(said), "{args:?}: {error}");
    }
    for args in [&["--admin", "127.0.0.1:0", "--port", "-1"][..], &["--admin", "127.0.0.2:11211"]] {
        assert!(load(Flavor::Larder, args, &[]).is_ok(), "{args:?}");
    }
}

/// The help texts are an interface, so changes need a review. With `LARDER_UPDATE=1` in the
/// environment, this test records the changed texts.
#[test]
fn help_texts_match_their_snapshots() {
    // A fixed width, so that the terminal does not change the wrapping.
    let wide = |command: clap::Command| command.term_width(100);
    let texts = [
        ("serve-short.txt", short_help()),
        ("serve-long.txt", wide(command()).render_long_help().to_string()),
        ("memcached.txt", memcached_help()),
    ];
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/settings/snapshots");
    for (name, text) in texts {
        let text: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        let path = folder.join(name);
        if std::env::var_os("LARDER_UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let recorded = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, recorded, "{name} has changed: LARDER_UPDATE=1 records it");
    }
}

/// Scripts and test harnesses start memcached with memory limits that are too small for Larder.
/// Larder must start anyway, with a larger limit.
#[test]
fn limits_too_small_for_larder_are_raised_for_memcached() {
    for (line, memory) in [("-m 2", 8 << 20), ("-m 1 -I 1m", 8 << 20), ("-m 9", 9 << 20)] {
        let settings = memcached(line).unwrap();
        assert_eq!(settings.memory, memory, "{line}");
        let raised = settings.notes.iter().any(|note| note.contains("is raised to 8"));
        assert_eq!(raised, memory == 8 << 20, "{line}: {:?}", settings.notes);
    }
    assert_eq!(larder(&["--memory", "2", "--max-item-size", "1m"]).unwrap().memory, 2 << 20);
    assert_eq!(memcached("-b 8675").unwrap().listen_backlog, 8675);
    assert!(memcached("-b 0").is_err());
    assert!(memcached("-C").unwrap().disable_cas);
}
