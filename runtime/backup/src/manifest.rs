//! The manifest of a backup: what it holds, and the checksum of every byte.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use reprise_base::hex;
use reprise_env::{Disk, DiskError, DiskErrorKind};
use reprise_log::parse_segment_name;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::tree::DirHandle;

/// The file that makes a directory a backup.
pub const MANIFEST_NAME: &str = "manifest.json";
/// Version of the manifest, and of how files lie beside it.
const FORMAT: u32 = 1;
/// No manifest is as long: a segment takes less than 200 bytes of it.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Begins the last line but one, which holds the checksum of all lines before.
const SUM_LINE: &str = "  \"manifest_sha256\": \"";

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// `log/…` or `checkpoints/…`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// In hexadecimal digits.
    pub sha256: String,
}

impl ManifestFile {
    /// The file's name without its folder.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// The description in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupManifest {
    /// Version of the manifest.
    pub format: u32,
    /// Version of the program that made it.
    pub program_version: String,
    /// In hexadecimal digits.
    pub database_id: String,
    /// Partitions of the database.
    pub partitions: u16,
    /// Settings hash of the newest part of the log, in hexadecimal digits.
    pub settings_hash: String,
    /// Microseconds since 1970. Nothing later is in it.
    pub created_us: i64,
    /// Position of the checkpoint, if there is one.
    pub checkpoint_lsn: Option<u64>,
    /// First LSN of the log in it.
    pub log_start: u64,
    /// The first record that is not in it would begin here.
    pub log_end: u64,
    /// Records behind the checkpoint.
    pub records: u64,
    /// All but the manifest.
    pub files: Vec<ManifestFile>,
}

/// Errors of a manifest, or of a file that it names.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum ManifestError {
    #[error("{0} is not a backup: it has no {MANIFEST_NAME}")]
    Missing(String),
    #[error("{MANIFEST_NAME} is damaged: {0}. Take the backup from another copy")]
    Damaged(String),
    #[error("{MANIFEST_NAME} has format {found}, this program reads format {FORMAT}")]
    Format { found: u32 },
    #[error("{file} differs from the manifest: {what}. Take the backup from another copy")]
    File { file: String, what: String },
    #[error("read {file}: {error}")]
    Io { file: String, error: io::Error },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl BackupManifest {
    pub(crate) const FORMAT: u32 = FORMAT;

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The file's text: the members, and behind them the checksum of all that comes before it.
    pub fn encode(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("numbers, texts and lists");
        let body = json.strip_suffix("\n}").expect("an object on lines");
        let body = format!("{body},\n");
        let sum = hex(&Sha256::digest(body.as_bytes()));
        format!("{body}{SUM_LINE}{sum}\"\n}}\n")
    }

    /// Reads what `encode` wrote, and checks it.
    pub fn decode(text: &str) -> Result<Self, ManifestError> {
        let damaged = |what: &str| ManifestError::Damaged(what.to_owned());
        let at = text.rfind(SUM_LINE).ok_or_else(|| damaged("its checksum is missing"))?;
        let (body, sum_lines) = text.split_at(at);
        let expected = hex(&Sha256::digest(body.as_bytes()));
        if sum_lines != format!("{SUM_LINE}{expected}\"\n}}\n") {
            return Err(damaged("it does not have its checksum"));
        }
        let members = body.strip_suffix(",\n").ok_or_else(|| damaged("it has no members"))?;
        let json = format!("{members}\n}}");
        let format = serde_json::from_str::<ManifestFormat>(&json);
        let found = format.map_err(|error| damaged(&error.to_string()))?.format;
        if found != FORMAT {
            return Err(ManifestError::Format { found });
        }
        let manifest: Self = serde_json::from_str(&json).map_err(|error| damaged(&error.to_string()))?;
        match manifest.files.iter().find(|file| !is_place(&file.path)) {
            Some(file) => Err(damaged(&format!("{:?} is not a file of a backup", file.path))),
            None => Ok(manifest),
        }
    }

    /// That of the backup in a directory of the file system.
    pub fn read(dir: &Path) -> Result<Self, ManifestError> {
        Self::read_in(&DirHandle::at(dir))
    }

    /// That of the backup at a place.
    pub fn read_in(place: &DirHandle) -> Result<Self, ManifestError> {
        let opened = place.root().and_then(|root| root.open_read(MANIFEST_NAME));
        let file = opened.map_err(|error| match error.kind {
            DiskErrorKind::NotFound => ManifestError::Missing(place.path().display().to_string()),
            _ => error.into(),
        })?;
        let mut text = vec![0; file.len()?.min(MANIFEST_BYTES_MAX) as usize];
        let read = file.read_at(0, &mut text)?;
        text.truncate(read);
        let text = String::from_utf8(text);
        Self::decode(&text.map_err(|_| ManifestError::Damaged("it is no text".into()))?)
    }

    /// Checks that every file is there, with its length and checksum. `goes_on` receives the number of bytes read, and stops the check
    /// if it returns false.
    pub fn check_files(&self, place: &DirHandle, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<(), ManifestError> {
        for file in &self.files {
            let shown = place.path().join(&file.path);
            let found = sum_file(folder_of(place, file), file.name(), shown, goes_on)?;
            let what = match (found.0 == file.bytes, found.1 == file.sha256) {
                (true, true) => continue,
                (false, _) => format!("it has {} bytes, and not {}", found.0, file.bytes),
                (true, false) => format!("its SHA-256 is {}, not {}", found.1, file.sha256),
            };
            let file = file.path.clone();
            return Err(ManifestError::File { file, what });
        }
        self.check_folders(place)
    }

    /// Refuses files that the manifest does not name: a restore would read them as a part of the log.
    fn check_folders(&self, place: &DirHandle) -> Result<(), ManifestError> {
        for folder in ["log", "checkpoints"] {
            let names = match place.folder(folder) {
                Ok(disk) => disk.list()?,
                Err(error) if error.kind == DiskErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            let mut paths = names.iter().map(|name| format!("{folder}/{name}"));
            let named = |path: &String| self.files.iter().any(|file| file.path == *path);
            if let Some(file) = paths.find(|path| !named(path)) {
                let what = "it is not named there".to_owned();
                return Err(ManifestError::File { file, what });
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct ManifestFormat {
    format: u32,
}

/// A place that a backup's file can have: nothing outside of its directory is ever read or written.
pub(crate) fn is_place(path: &str) -> bool {
    match path.split_once('/') {
        Some(("log", name)) => parse_segment_name(name).is_some(),
        Some(("checkpoints", name)) => reprise_checkpoint::parse_checkpoint_name(name).is_some(),
        _ => false,
    }
}

fn folder_of(place: &DirHandle, file: &ManifestFile) -> Result<Arc<dyn Disk>, DiskError> {
    match file.path.split_once('/') {
        Some((folder, _)) => place.folder(folder),
        None => place.root(),
    }
}

/// Returns the length and SHA-256 of a file. Messages show its place, `shown`.
pub fn sum_file(
    disk: Result<Arc<dyn Disk>, DiskError>,
    name: &str,
    shown: PathBuf,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<(u64, String), ManifestError> {
    let opened = disk.and_then(|disk| disk.open_read(name));
    let file = opened.map_err(|error| match error.kind {
        DiskErrorKind::NotFound => ManifestError::File {
            file: shown.display().to_string(),
            what: "it is missing".into(),
        },
        _ => error.into(),
    })?;
    let (mut sum, mut bytes) = (Sha256::new(), 0);
    let mut piece = vec![0; file.len()?.clamp(1, 1 << 20) as usize];
    loop {
        match file.read_at(bytes, &mut piece)? {
            0 => return Ok((bytes, hex(&sum.finalize()))),
            read => {
                sum.update(&piece[..read]);
                bytes += read as u64;
                if !goes_on(read as u64) {
                    return Err(ManifestError::Io {
                        file: shown.display().to_string(),
                        error: io::Error::other("it was given up: the server is stopping"),
                    });
                }
            }
        }
    }
}

/// Describes the files of a directory that were just written.
pub(crate) fn describe_files(
    place: &DirHandle,
    folders: &[(&str, Arc<dyn Disk>)],
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<ManifestFile>, ManifestError> {
    let mut files = Vec::new();
    for (folder, disk) in folders {
        for name in disk.list()? {
            let path = format!("{folder}/{name}");
            let shown = place.path().join(&path);
            let (bytes, sha256) = sum_file(Ok(disk.clone()), &name, shown, goes_on)?;
            files.push(ManifestFile { path, bytes, sha256 });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> BackupManifest {
        BackupManifest {
            format: FORMAT,
            program_version: "1.2.3".into(),
            database_id: "00".repeat(16),
            partitions: 2,
            settings_hash: "0".repeat(16),
            created_us: 5,
            checkpoint_lsn: Some(1024),
            log_start: 512,
            log_end: 4096,
            records: 3,
            files: vec![ManifestFile {
                path: "log/log-0000000000000200.seg".into(),
                bytes: 9,
                sha256: "ab".repeat(32),
            }],
        }
    }

    #[test]
    fn a_manifest_reads_back_and_is_json() {
        let text = manifest().encode();
        assert_eq!(BackupManifest::decode(&text).expect("decoded"), manifest());
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["manifest_sha256"].as_str().map(str::len), Some(64));
    }

    #[test]
    fn every_change_of_a_manifest_is_found() {
        let text = manifest().encode().into_bytes();
        for at in 0..text.len() {
            for bit in [1, 0x80] {
                let mut changed = text.clone();
                changed[at] ^= bit;
                let changed = String::from_utf8_lossy(&changed);
                assert!(BackupManifest::decode(&changed).is_err(), "byte {at}");
            }
            let cut = String::from_utf8_lossy(&text[..at]);
            assert!(BackupManifest::decode(&cut).is_err(), "cut at {at}");
        }
        let outside = ["/etc/passwd", "log/../x", "log/log-1.seg", "x", "log/", "catalog/db"];
        for path in outside {
            let mut manifest = manifest();
            manifest.files[0].path = path.into();
            let refused = BackupManifest::decode(&manifest.encode());
            assert!(matches!(refused, Err(ManifestError::Damaged(_))), "{path}");
        }
        let later = BackupManifest {
            format: 2,
            ..manifest()
        };
        let refused = BackupManifest::decode(&later.encode());
        assert!(matches!(refused, Err(ManifestError::Format { found: 2 })));
    }
}
