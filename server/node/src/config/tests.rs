use reprise_database::{AfterImage, CommitMode, LogPolicy};

use super::*;

fn load(args: ServeArgs, file: &str) -> Result<ServeConfig, String> {
    let file = file.parse().map_err(|error: toml::de::Error| error.to_string())?;
    ServeConfig::join(args, file, None, &|_| Source::Flag).map_err(|error| error.to_string())
}

#[test]
fn a_standby_has_readers_whose_views_keep_a_part_of_the_memory() {
    let readers_of = |sites: u16, text: &str| {
        let config = load(ServeArgs::default(), text).expect("valid");
        let readers = config.replication.readers(sites, config.memory.memory_max.value);
        (readers.threads, readers.view_bytes_max)
    };
    let readers = |text: &str| readers_of(1, text);
    assert_eq!(readers("memory_max = \"800MiB\""), (2, 100 << 20));
    assert_eq!(readers_of(7, "memory_max = \"64GiB\""), (7, 1 << 30));
    let said = "memory_max = \"800MiB\"\nview_memory_max = \"700MiB\"\nreaders = 1";
    assert_eq!(readers(said), (1, 700 << 20));
}

#[test]
fn a_flag_goes_over_the_file_and_the_file_over_the_default() {
    let mut args = ServeArgs::default();
    args.place.sites = Some(3);
    let config = load(args, "sites = 2\npartitions = 4\ncommit = \"async\"").expect("valid");
    assert_eq!(
        config.place.sites,
        Setting {
            value: Some(3),
            source: Source::Flag
        }
    );
    assert_eq!(
        config.place.partitions,
        Setting {
            value: Some(4),
            source: Source::File
        }
    );
    assert!(matches!(config.log.commit.value, CommitMode::Async));
    assert_eq!(config.address.to_string(), "127.0.0.1:8080");
    assert_eq!(config.memory.memory_ready, by_default(0));
    assert_eq!(config.limits.idempotency_keep_s, by_default(24 * 3600));
    assert!(load(ServeArgs::default(), "idempotency_keep_s = 0").is_err());
    assert_eq!(config.limits.call_time_max_ms, by_default(1_000));
    let config = load(ServeArgs::default(), "call_time_max_ms = 0").expect("valid");
    assert_eq!(config.limits.call_time_max_ms.value, 0);
    for text in ["memory_ready = \"2GiB\"", "memory_ready = 2147483648"] {
        let config = load(ServeArgs::default(), &format!("memory_max = \"8GiB\"\n{text}")).expect("valid");
        assert_eq!(config.memory.memory_ready.value, 2 << 30);
        let text = config.describe(&by_default(2), &by_default(1)).more.join("\n");
        assert!(text.contains("memory-ready       2147483648  (file)"), "{text}");
        assert!(text.contains("memory-max         8589934592  (file)"), "{text}");
    }
    let config =
        load(ServeArgs::default(), "memory_max = \"1GiB\"\nmemory_ready = \"950MiB\"").expect("valid by itself");
    assert!(config.memory.check().is_err());
}

#[test]
fn mistakes_in_the_file_are_named() {
    for (file, part) in [
        ("data-dir = \"x\"", "unknown field `data-dir`"),
        ("sites = 0", "sites: the number of sites must be from 1"),
        ("log = \"physical\"", "log: \"physical\": take command, physiological"),
        ("[log]\nmodus = \"auto\"", "log: unknown field `modus`"),
        ("[[tokens]]\nname = \"a\"\nrole = \"root\"\nsha256 = \"00\"", "token a"),
        ("[log]\nmode = 7", "log: \"7\": take command"),
        ("sites = [1]", "sites: the number of sites must be from 1"),
        ("[unheard_of]", "unknown field `unheard_of`"),
        ("[http]\nwait_s = 0", "http: unknown field `wait_s`"),
        ("[http]\nbody_wait_s = 0", "http: body_wait_s must be at least 1"),
        ("log_format = \"xml\"", "log_format: \"xml\": take text or json"),
        ("otlp_endpoint = \"x\"", "otlp_endpoint: \"x\" is not a collector"),
        ("memory_ready = \"2 GB\"", "memory_ready: \"2 GB\" is no size"),
        ("memory_ready = -1", "memory_ready: \"-1\" is no size"),
        (
            "memory_max = \"63MiB\"",
            "memory_max: the smallest memory limit is 64 MiB",
        ),
        ("listen = \"nowhere\"", "not an address to listen on"),
        (
            "lease_etcd = \"h:2379\"",
            "lease_etcd: \"h:2379\" is not a list of etcd endpoints",
        ),
        ("lease_etcd = \"http://h:1,,\"", "is not a list of etcd endpoints"),
        ("readers = 0", "the number of readers must be from 1 to 256"),
        ("readers = 257", "the number of readers must be from 1 to 256"),
        (
            "lease_etcd = \"u:secret@h\"",
            "lease_etcd: \"h\" is not a list of etcd endpoints",
        ),
        ("lease_ca_cert = \"ca.pem\"", "lease-ca-cert needs lease-etcd"),
        ("ship = \"rows\"", "ship: \"rows\": take as-logged, changes or command"),
        ("ship = \"changes\"", "ship changes needs standbys"),
        (
            "ship = \"command\"\nship_listen = \"127.0.0.1:0\"\nlog = \"both\"",
            "ship command: the server ships a log of both forms as it is",
        ),
        (
            "ship = \"changes\"\nship_listen = \"127.0.0.1:0\"\ndevice = \"nvram\"\nnvram = \"r\"\nnvram_size = \"8MiB\"",
            "ship changes: the server ships a log in NVRAM as it is",
        ),
        ("view_time_max_ms = 0", "view_time_max_ms: the milliseconds of a view"),
        (
            "view_fuel_max = 16383",
            "view_fuel_max: the fuel of a read must be from 16384 to 1000000000000",
        ),
        ("view_memory_max = \"much\"", "view_memory_max"),
        ("lease_ttl_ms = 1000", "lease_ttl_ms: the milliseconds of a lease"),
        ("lease_ttl_ms = 2500", "2500 ms are not whole seconds"),
        (
            "lease_etcd = \"http://h:1\"",
            "needs safety 2-safe, quorum or very-safe",
        ),
        (
            "lease_etcd = \"http://h:1\"\nsafety = \"1-safe\"\nship_listen = \"127.0.0.1:0\"",
            "needs safety 2-safe, quorum or very-safe",
        ),
    ] {
        let error = load(ServeArgs::default(), file).err().expect(file);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_primary_starts_with_what_its_file_says_for_the_time_as_a_standby() {
    let config = load(
        ServeArgs::default(),
        "standby_token = \"t\"\nstandby_ca_cert = \"ca.pem\"",
    )
    .expect("valid");
    assert!(config.replication.standby_of.value.is_none());
}

#[test]
fn the_log_is_a_mode_or_a_table() {
    let config = load(ServeArgs::default(), "log = \"both\"").expect("valid");
    assert_eq!(config.log.log.value, LogPolicy::Both);
    let file = "[log]\nmode = \"physiological\"\ndifferential = false";
    let config = load(ServeArgs::default(), file).expect("valid");
    assert_eq!(config.log.log.value, LogPolicy::Physiological);
    assert_eq!(config.log.log_differential.value, AfterImage::Whole);
    let text = config.describe(&by_default(2), &by_default(1)).more.join("\n");
    assert!(text.contains("log-differential   false  (file)"), "{text}");
}

#[test]
fn an_open_server_listens_on_loopback_only() {
    let error = load(ServeArgs::default(), "listen = \"0.0.0.0:80\"")
        .err()
        .expect("refused");
    assert!(error.contains("loopback addresses only"), "{error}");
    let token = format!(
        "listen = \"0.0.0.0:80\"\n[[tokens]]\nname = \"ci\"\nrole = \"write\"\nsha256 = \"{}\"",
        "0f".repeat(32)
    );
    let config = load(ServeArgs::default(), &token).expect("valid");
    let text = config.describe(&by_default(2), &by_default(1)).more.join("\n");
    assert!(text.contains("ci (write)") && !text.contains("0f0f"), "{text}");
}

#[test]
fn the_example_names_what_sighup_changes_and_no_other() {
    let config = load(ServeArgs::default(), "").expect("valid");
    let text = EXAMPLE.split_once("SIGHUP").expect("it tells of SIGHUP").1;
    for entry in config.entries() {
        let key = entry.name.replace('-', "_");
        let words = || text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        assert_eq!(words().any(|word| word == key), entry.is_live, "{key}");
    }
}

/// A key of the file, its flag and its environment variable share one name.
#[test]
fn flags_variables_and_keys_go_by_one_name() {
    let command = ServeArgs::augment_args(clap::Command::new("serve"));
    let config = load(ServeArgs::default(), "").expect("valid");
    let of_file_alone = ["http", "origins", "tokens"];
    for entry in config.entries() {
        let flag = command.get_arguments().find(|arg| arg.get_long() == Some(&entry.name));
        let Some(flag) = flag else {
            assert!(of_file_alone.contains(&entry.name.as_str()), "{}", entry.name);
            continue;
        };
        let variable = format!("REPRISE_{}", entry.name.replace('-', "_").to_uppercase());
        assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
        let help = flag.get_help().map(|help| help.to_string()).unwrap_or_default();
        assert!(help.contains("[default: "), "{} has no default", entry.name);
    }
}

#[test]
fn a_missing_file_is_none_and_a_file_that_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = |data_dir: &Path| {
        let mut args = ServeArgs::default();
        args.place.data_dir = Some(data_dir.to_owned());
        args
    };
    let own = dir.path().join(DEFAULT_FILE);
    for absent in [dir.path().to_owned(), dir.path().join("none-yet")] {
        assert_eq!(file_of(&args(&absent)).expect("searched"), None);
    }
    std::os::unix::fs::symlink("gone/reprise.toml", &own).expect("linked");
    let found = file_of(&args(dir.path())).expect("searched").expect("a link");
    let refused = read_file(&found).expect_err("its target is missing");
    assert!(matches!(refused, VerbFailure::Usage(_)), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("a link to gone/reprise.toml, which is missing"),
        "{refused}"
    );
    // A file in place of the directory stands for a directory that can't be searched.
    fs::write(dir.path().join("file"), "").expect("written");
    let refused = file_of(&args(&dir.path().join("file"))).expect_err("not searched");
    assert!(matches!(refused, VerbFailure::Usage(_)), "{refused}");
}

#[test]
fn a_token_is_shown_with_its_scope_if_that_is_not_its_name() {
    let token = |more: &str, digit: &str| {
        let digest = digit.repeat(64);
        format!("[[tokens]]\nname = \"app\"\nrole = \"write\"\nsha256 = \"{digest}\"\n{more}\n")
    };
    let shown = |file: &str| {
        let config = load(ServeArgs::default(), file).expect("valid");
        config.tokens.entries().remove(0).value
    };
    assert_eq!(shown(&token("", "0")), "app (write)");
    let both = ["0", "1"].map(|digit| token("scope = \"shop\"", digit)).concat();
    assert_eq!(shown(&both), "app (write, scope shop)");
}
