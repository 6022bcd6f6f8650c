//! `reprise token`: the tokens of a configuration file. The server reads them at its start and at SIGHUP.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use reprise_env::entropy;
use serde_json::json;
use sha2::{Digest, Sha256};
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use crate::{
    cli::Output,
    config::{self, TokenEntry, check_tokens},
    output::{VerbFailure, VerbResult, print_json, print_note, print_table, print_text, table, usage},
};

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// Digits of a digest that a list shows and that tell tokens of one name apart.
const DIGITS_SHOWN: usize = 12;

const TAKES_EFFECT: &str = "send SIGHUP to a running server to apply the change";

/// The configuration file of a server.
#[derive(Args, Clone)]
pub struct TokenFileArgs {
    /// Configuration file [default: reprise.toml in the data directory]
    #[arg(long, env = "REPRISE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Data directory of the server
    #[arg(long, env = "REPRISE_DATA_DIR", value_name = "DIR", default_value = config::DEFAULT_DATA_DIR)]
    pub data_dir: PathBuf,
}

impl TokenFileArgs {
    pub fn path(&self) -> PathBuf {
        let own = || self.data_dir.join(config::DEFAULT_FILE);
        self.config.clone().unwrap_or_else(own)
    }
}

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Create a token, print it once, and add its digest to the file
    #[command(
        after_help = "Examples:\n  reprise token new ops --role admin\n  reprise token new app --role write && pkill -HUP -x reprise\n\n\
                      If the name has a token already, the file then has both. Give clients the new token, then revoke the old one."
    )]
    New {
        /// Name of the token's owner. The server's log and output show it as the principal
        name: String,
        /// Role of the token: read, write or admin
        #[arg(long)]
        role: String,
        /// Scope of its idempotency keys. Tokens with the same scope share their keys [default: the name]
        #[arg(long)]
        scope: Option<String>,
        /// Module, procedure or table to which it is restricted; give several to grant several [default: all]
        #[arg(long = "grant", value_name = "MODULE[.NAME]")]
        grants: Vec<String>,
        #[command(flatten)]
        file: TokenFileArgs,
    },
    /// List the tokens in the file, with the first digits of their digests
    #[command(after_help = "Example:\n  reprise token list --data-dir ./reprise-data")]
    List {
        #[command(flatten)]
        file: TokenFileArgs,
    },
    /// Remove the tokens with a name from the file
    #[command(after_help = "Examples:\n  reprise token revoke app\n  reprise token revoke app --sha256 7692c3ad3540")]
    Revoke {
        /// Name of the tokens
        name: String,
        /// Remove only the token whose digest begins with these digits. If several do, the command removes none and lists them
        #[arg(long, value_name = "DIGITS")]
        sha256: Option<String>,
        #[command(flatten)]
        file: TokenFileArgs,
    },
}

pub fn run(command: &TokenCommand, output: Output) -> VerbResult {
    match command {
        TokenCommand::New {
            name,
            role,
            scope,
            grants,
            file,
        } => {
            let mut tokens = TokenFile::open(file)?;
            let token = hex(&entropy::<TOKEN_BYTES>()?);
            let sha256 = hex(&Sha256::digest(&token));
            tokens.add(&TokenEntry {
                name: name.clone(),
                role: role.clone(),
                scope: scope.clone(),
                grants: (!grants.is_empty()).then(|| grants.clone()),
                sha256: sha256.clone(),
            })?;
            tokens.save()?;
            let path = tokens.path.display().to_string();
            if output == Output::Json {
                let scope = scope.as_ref().unwrap_or(name);
                let made = json!({"name": name, "role": role, "scope": scope, "grants": grants, "token": token, "sha256": sha256, "file": path});
                return Ok(print_json(&made)?);
            }
            print_note(&format!(
                "added the digest of token {name} ({role}) to {path}: save the token now, because it can't be shown again; {TAKES_EFFECT}"
            ));
            Ok(print_text(&token)?)
        }
        TokenCommand::List { file } => list(&TokenFile::open(file)?.entries()?, output),
        TokenCommand::Revoke { name, sha256, file } => {
            let mut tokens = TokenFile::open(file)?;
            let removed = tokens.remove(name, sha256.as_deref())?;
            tokens.save()?;
            let path = tokens.path.display().to_string();
            match output {
                Output::Json => print_json(&json!({"name": name, "revoked": removed, "file": path}))?,
                Output::Text => {
                    let tokens = if removed == 1 {
                        "1 token"
                    } else {
                        &format!("{removed} tokens")
                    };
                    print_text(&format!("removed {tokens} named {name} from {path}; {TAKES_EFFECT}"))?;
                }
            }
            Ok(())
        }
    }
}

fn list(entries: &[TokenEntry], output: Output) -> VerbResult {
    if output == Output::Json {
        let list = entries.iter().map(|entry| {
            let (name, role, sha256) = (&entry.name, &entry.role, &entry.sha256);
            let grants = entry.grants.as_deref().unwrap_or_default();
            json!({"name": name, "role": role, "scope": entry.scope(), "grants": grants, "sha256": sha256})
        });
        return Ok(print_json(&json!({"tokens": list.collect::<Vec<_>>()}))?);
    }
    let mut table = table(&["name", "role", "scope", "grants", "sha256"]);
    for entry in entries {
        let digits = entry.sha256.get(..DIGITS_SHOWN).unwrap_or(&entry.sha256);
        let grants = entry
            .grants
            .as_ref()
            .map_or("all".to_owned(), |grants| grants.join(", "));
        table.add_row([entry.name.as_str(), &entry.role, entry.scope(), &grants, digits]);
    }
    Ok(print_table(&table)?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A configuration file whose tokens are changed; everything else in it stays as it is, comments included.
struct TokenFile {
    path: PathBuf,
    document: DocumentMut,
}

impl TokenFile {
    /// Opens the file. Without one there are no tokens yet. A link whose target is missing is an error, or the file would replace the link.
    fn open(args: &TokenFileArgs) -> Result<Self, VerbFailure> {
        let path = args.path();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => String::new(),
            read => read.with_context(|| format!("read {}", path.display()))?,
        };
        let document = text.parse().map_err(|error| anyhow!("{}: {error}", path.display()))?;
        Ok(Self { path, document })
    }

    fn entries(&self) -> Result<Vec<TokenEntry>, VerbFailure> {
        let checked = check_tokens(&self.document.to_string());
        Ok(checked.map_err(|why| anyhow!("{}: {why}", self.path.display()))?)
    }

    /// # Errors
    /// The entry is none, or does not go with the others.
    fn add(&mut self, entry: &TokenEntry) -> VerbResult {
        let mut item = Table::new();
        item.insert("name", value(&entry.name));
        item.insert("role", value(&entry.role));
        if let Some(scope) = &entry.scope {
            item.insert("scope", value(scope));
        }
        if let Some(grants) = &entry.grants {
            item.insert("grants", value(grants.iter().collect::<Array>()));
        }
        item.insert("sha256", value(&entry.sha256));
        self.tables()?.push(item);
        self.entries().map(|_| ())
    }

    /// Removes the tokens of a name, or the only one whose digest begins with these digits. Returns how many.
    ///
    /// # Errors
    /// There is none, the digits are empty or fit several, or no token would be left, which would let in everybody.
    fn remove(&mut self, name: &str, digits: Option<&str>) -> Result<usize, VerbFailure> {
        if digits.is_some_and(|digits| digits.trim().is_empty()) {
            return Err(usage(format!(
                "--sha256 is empty: write the first digits that `reprise token list` shows, or leave --sha256 out to remove all tokens named {name}"
            )));
        }
        let before = self.entries()?;
        let prefix = digits.unwrap_or_default().to_ascii_lowercase();
        let goes = |entry: &TokenEntry| entry.name == name && entry.sha256.to_ascii_lowercase().starts_with(&prefix);
        let going: Vec<&TokenEntry> = before.iter().filter(|entry| goes(entry)).collect();
        let removed = going.len();
        let path = self.path.display().to_string();
        if digits.is_some() && removed > 1 {
            let matches: Vec<&str> = going.iter().map(|entry| entry.sha256.as_str()).collect();
            return Err(usage(format!(
                "--sha256 {prefix} fits {removed} tokens named {name} in {path}, and none was removed: write more digits of one of\n{}",
                matches.join("\n")
            )));
        }
        if removed == 0 {
            let which = digits.map_or(String::new(), |digits| format!(" with the digest {digits}…"));
            return Err(anyhow!("{path} has no token named {name}{which}: see `reprise token list`").into());
        }
        if removed == before.len() {
            let why = "without tokens the server would let everyone in: create another token first";
            return Err(anyhow!("{name} is the last token in {path}; {why}").into());
        }
        let mut stays = before.iter().map(|entry| !goes(entry));
        self.tables()?.retain(|_| stays.next().unwrap_or(true));
        Ok(removed)
    }

    /// The entries, which an inline array holds in another form.
    fn tables(&mut self) -> Result<&mut ArrayOfTables, VerbFailure> {
        let item = self.document.entry("tokens").or_insert(Item::None);
        if let Item::Value(_) = item {
            let inline = std::mem::take(item);
            *item = inline
                .into_array_of_tables()
                .map_or_else(|other| other, Item::ArrayOfTables);
        }
        let path = self.path.display();
        let tables = item.or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
        let tables = tables.as_array_of_tables_mut();
        Ok(tables.ok_or_else(|| anyhow!("{path}: tokens is not a list of tables: write [[tokens]]"))?)
    }

    /// Puts the whole file in place of the former one, whose owner and permissions it keeps.
    fn save(&self) -> VerbResult {
        let place = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let folder = place.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("create {}", folder.display()))?;
        let beside = place.with_extension("toml.new");
        let file = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside);
        let file = file.with_context(|| {
            format!(
                "create {}: if no other command is writing it, remove it",
                beside.display()
            )
        })?;
        let written = self
            .write(file, &place, folder)
            .and_then(|()| fs::rename(&beside, &place));
        if written.is_err() {
            let _ = fs::remove_file(&beside); // the caller reports the error
        }
        let written = written.and_then(|()| fs::File::open(folder)?.sync_all());
        Ok(written.with_context(|| format!("write {}", place.display()))?)
    }

    fn write(&self, mut file: fs::File, place: &Path, folder: &Path) -> io::Result<()> {
        file.write_all(self.document.to_string().as_bytes())?;
        let (like, mode) = match fs::metadata(place) {
            Ok(former) => (former.clone(), former.permissions().mode()),
            Err(_) => (fs::metadata(folder)?, 0o600),
        };
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
            std::os::unix::fs::fchown(&file, Some(like.uid()), Some(like.gid()))?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGESTS: [&str; 3] = [
        "aa00000000000000000000000000000000000000000000000000000000000000",
        "ab00000000000000000000000000000000000000000000000000000000000000",
        "ac00000000000000000000000000000000000000000000000000000000000000",
    ];

    fn file(text: &str) -> TokenFile {
        TokenFile {
            path: "reprise.toml".into(),
            document: text.parse().expect("TOML"),
        }
    }

    fn entry(name: &str, role: &str, sha256: &str) -> TokenEntry {
        TokenEntry {
            name: name.into(),
            role: role.into(),
            scope: None,
            grants: None,
            sha256: sha256.into(),
        }
    }

    fn names(file: &TokenFile) -> Vec<String> {
        let entries = file.entries().expect("good entries");
        entries.into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn a_token_is_added_wherever_the_others_stand_and_the_rest_of_the_file_stays() {
        for text in [
            "",
            "listen = \"127.0.0.1:80\" # here\n",
            "[http]\nbody_wait_s = 3 # slow\n",
            "# mine\n[[tokens]]\nname = \"x\"\nrole = \"read\"\nsha256 = \"ab00000000000000000000000000000000000000000000000000000000000000\"\n\n[http]\nbody_wait_s = 3\n",
            "tokens = [{name = \"x\", role = \"read\", sha256 = \"ab00000000000000000000000000000000000000000000000000000000000000\"}]\nlisten = \"a\"\n",
        ] {
            let mut file = file(text);
            let before = names(&file);
            file.add(&entry("app", "write", DIGESTS[0])).expect("added");
            assert_eq!(names(&file), [before, vec!["app".into()]].concat(), "{text}");
            let (written, text): (toml::Table, toml::Table) = (
                file.document.to_string().parse().expect("TOML"),
                text.parse().expect("TOML"),
            );
            for (name, value) in text.iter().filter(|(name, _)| *name != "tokens") {
                assert_eq!(written.get(name), Some(value), "{written}");
            }
        }
        let mut file = file("# mine\nlisten = \"a\" # here\n");
        file.add(&entry("app", "write", DIGESTS[0])).expect("added");
        assert!(file.document.to_string().starts_with("# mine\nlisten = \"a\" # here\n"));
    }

    #[test]
    fn an_entry_that_the_server_would_refuse_is_not_added() {
        let mut given = file("");
        given.add(&entry("app", "write", DIGESTS[0])).expect("added");
        for (name, role, sha256, why) in [
            ("app", "read", DIGESTS[1], "differ in role"),
            ("app", "root", DIGESTS[1], "role"),
            ("", "read", DIGESTS[1], "name"),
            ("other", "read", DIGESTS[0], "same sha256"),
        ] {
            let mut file = file(&given.document.to_string());
            let refused = file.add(&entry(name, role, sha256)).expect_err("refused").to_string();
            assert!(refused.contains(why), "{refused}");
        }
        for (grants, why) in [
            (&["shop"][..], "differ in role, scope or grants"),
            (&["shop.*"], "not \"shop.*\""),
            (&[], "leave out the list"),
        ] {
            let mut file = file(&given.document.to_string());
            let granted = TokenEntry {
                grants: Some(grants.iter().map(|grant| (*grant).to_owned()).collect()),
                ..entry("app", "write", DIGESTS[1])
            };
            let refused = file.add(&granted).expect_err("refused").to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn one_of_several_tokens_of_a_name_is_revoked_or_all_but_never_the_last_of_the_file() {
        let mut file = file("");
        for (name, sha256) in [("app", DIGESTS[0]), ("app", DIGESTS[1]), ("ops", DIGESTS[2])] {
            file.add(&entry(name, "admin", sha256)).expect("added");
        }
        for (name, digits) in [("nobody", None), ("app", Some("ff")), ("", None)] {
            let refused = file.remove(name, digits).expect_err("no such token");
            assert!(matches!(refused, VerbFailure::Other(_)), "{name} {digits:?}: {refused}");
        }
        // A script gives an empty variable, or too few digits.
        for (digits, said) in [("", &["empty"][..]), (" ", &["empty"]), ("A", &DIGESTS[..2])] {
            let refused = file.remove("app", Some(digits)).expect_err("refused");
            assert!(matches!(refused, VerbFailure::Usage(_)), "{digits:?}: {refused}");
            let text = refused.to_string();
            assert!(said.iter().all(|said| text.contains(said)), "{digits:?}: {text}");
        }
        assert_eq!(names(&file), ["app", "app", "ops"]);
        assert_eq!(file.remove("app", Some("AB")).expect("removed"), 1);
        assert_eq!(names(&file), ["app", "ops"]);
        assert_eq!(file.remove("app", None).expect("removed"), 1);
        let refused = file.remove("ops", None).expect_err("refused").to_string();
        assert!(refused.contains("last token"), "{refused}");
        assert_eq!(names(&file), ["ops"]);
    }

    #[test]
    fn a_saved_file_keeps_its_permissions_and_a_new_one_is_for_its_owner() {
        let dir = tempfile::tempdir().expect("a directory");
        let args = |name: &str| TokenFileArgs {
            config: Some(dir.path().join(name)),
            data_dir: dir.path().into(),
        };
        let mode = |name: &str| {
            let found = fs::metadata(dir.path().join(name)).expect("a file");
            found.permissions().mode() & 0o777
        };
        fs::write(dir.path().join("old.toml"), "# old\n").expect("written");
        fs::set_permissions(dir.path().join("old.toml"), fs::Permissions::from_mode(0o640)).expect("set");
        std::os::unix::fs::symlink("old.toml", dir.path().join("link.toml")).expect("linked");
        for name in ["new.toml", "link.toml"] {
            let mut file = TokenFile::open(&args(name)).expect("opened");
            file.add(&entry("app", "write", DIGESTS[0])).expect("added");
            file.save().expect("saved");
            assert_eq!(names(&TokenFile::open(&args(name)).expect("opened")), ["app"]);
        }
        assert_eq!((mode("new.toml"), mode("old.toml")), (0o600, 0o640));
        assert!(dir.path().join("link.toml").is_symlink());
        std::os::unix::fs::symlink("gone.toml", dir.path().join("dangling.toml")).expect("linked");
        assert!(TokenFile::open(&args("dangling.toml")).is_err());
        fs::remove_file(dir.path().join("dangling.toml")).expect("removed");
        // Another command is writing.
        fs::write(dir.path().join("new.toml.new"), "").expect("written");
        let file = TokenFile::open(&args("new.toml")).expect("opened");
        assert!(file.save().expect_err("refused").to_string().contains("new.toml.new"));
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 4);
    }
}
