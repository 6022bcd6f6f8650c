//! Compiled code on disk, so that a restart compiles nothing twice. To load machine code is to trust it. A file counts only if its name is
//! the hash of the compiled bytes and settings. A checksum keyed with the database's secret must match, too. Otherwise the module is
//! compiled anew. These files only save time, and backups leave them out.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard},
};

use reprise_base::limits::CODE_KEPT_BYTES_MAX;
use reprise_env::{Disk, DiskError};
use sha2::{Digest, Sha256};

use crate::engine::WASMTIME_VERSION;

const MAGIC: &[u8; 8] = b"RPRCODE1";
const HEADER_BYTES: usize = MAGIC.len() + 32;
const SUFFIX: &str = ".code";
const UNFINISHED: &str = "unfinished.tmp";
/// Bytes of a block of SHA-256, to which HMAC pads its key.
const HMAC_BLOCK_BYTES: usize = 64;

/// Files of compiled code in one folder.
pub(crate) struct KeptCode {
    disk: Arc<dyn Disk>,
    key: [u8; 32],
    /// Bytes of all files together at most.
    bytes_max: u64,
    files: Mutex<CodeFiles>,
}

#[derive(Default)]
struct CodeFiles {
    /// The known files, by name.
    known: BTreeMap<String, CodeFile>,
    uses: u64,
}

struct CodeFile {
    bytes: u64,
    /// Number of the newest use; 0: none since the folder was opened.
    used: u64,
}

/// Returns the name of kept code, from everything that determines it: the compiled bytes, the compiler, its settings.
pub(crate) fn name_of(engine: &wasmtime::Engine, rewritten: &[u8]) -> [u8; 32] {
    let mut settings = Settings(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut settings);
    settings.0.update(WASMTIME_VERSION.as_bytes());
    settings.0.update((rewritten.len() as u64).to_le_bytes());
    settings.0.update(rewritten);
    settings.0.finalize().into()
}

/// A hasher that takes all bytes of the settings.
struct Settings(Sha256);

impl Hasher for Settings {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0 // wasmtime uses the digest instead
    }
}

impl KeptCode {
    /// Opens a folder. `secret` is the database's own. Files are read when they are needed. Files of other names stay, because the operator
    /// may have linked a folder that holds them.
    pub fn open(disk: Arc<dyn Disk>, secret: &[u8]) -> Result<Self, DiskError> {
        let mut files = CodeFiles::default();
        for name in disk.list()? {
            if name == UNFINISHED {
                disk.remove(&name)?; // a crash left the file incomplete
            } else if is_code_name(&name) {
                match disk.open_read(&name).and_then(|file| file.len()) {
                    Ok(bytes) => drop(files.known.insert(name, CodeFile { bytes, used: 0 })),
                    Err(_) => disk.remove(&name)?,
                }
            }
        }
        Ok(Self {
            key: hmac(secret, &[b"reprise compiled code"]),
            disk,
            bytes_max: CODE_KEPT_BYTES_MAX,
            files: Mutex::new(files),
        })
    }

    fn lock(&self) -> MutexGuard<'_, CodeFiles> {
        self.files.lock().expect("nothing panics under this lock")
    }

    /// Returns the code under this name. None if there is none, or if it was changed.
    pub fn get(&self, name: &[u8; 32]) -> Option<Vec<u8>> {
        let file = file_name(name);
        if !self.lock().known.contains_key(&file) {
            return None;
        }
        let code = self.read(&file, name);
        match code {
            Some(_) => self.lock().record_use(&file),
            None => self.remove(&file),
        }
        code
    }

    fn read(&self, file: &str, name: &[u8; 32]) -> Option<Vec<u8>> {
        let opened = self.disk.open_read(file).ok()?;
        let length = opened.len().ok().filter(|bytes| *bytes <= self.bytes_max)?;
        let mut bytes = vec![0; length as usize];
        let is_whole = opened.read_at(0, &mut bytes).ok()? == bytes.len();
        let (magic, rest) = bytes.split_first_chunk::<{ MAGIC.len() }>()?;
        let (sum, code) = rest.split_first_chunk::<32>()?;
        let is_ours = is_whole && magic == MAGIC && *sum == self.sum(name, code);
        is_ours.then(|| bytes.split_off(HEADER_BYTES))
    }

    fn sum(&self, name: &[u8; 32], code: &[u8]) -> [u8; 32] {
        hmac(&self.key, &[MAGIC, name, &(code.len() as u64).to_le_bytes(), code])
    }

    /// Keeps code, and deletes the longest unused code if there is no room. If the disk refuses it, it is not kept.
    pub fn put(&self, name: &[u8; 32], code: &[u8]) {
        let file = file_name(name);
        let bytes = (HEADER_BYTES + code.len()) as u64;
        if bytes > self.bytes_max {
            return;
        }
        self.make_room(bytes);
        // The lock covers file and name, because two threads may have compiled the same code.
        let mut files = self.lock();
        match self.write(&file, &self.sum(name, code), code) {
            Ok(()) => {
                files.known.insert(file.clone(), CodeFile { bytes, used: 0 });
                files.record_use(&file);
            }
            Err(_) => {
                let _ = self.disk.remove(UNFINISHED); // the next opening removes it otherwise
            }
        }
    }

    fn write(&self, file: &str, sum: &[u8; 32], code: &[u8]) -> Result<(), DiskError> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + code.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(sum);
        bytes.extend_from_slice(code);
        // The file is not synced: after a crash the checksum shows which files are complete.
        self.disk.create(UNFINISHED)?.write_at(0, &bytes)?;
        self.disk.rename(UNFINISHED, file)
    }

    fn make_room(&self, bytes: u64) {
        loop {
            let oldest = {
                let files = self.lock();
                let held: u64 = files.known.values().map(|known| known.bytes).sum();
                if held + bytes <= self.bytes_max {
                    return;
                }
                let oldest = files.known.iter().min_by_key(|(_, known)| known.used);
                oldest.map(|(file, _)| file.clone())
            };
            match oldest {
                Some(file) => self.remove(&file),
                None => return,
            }
        }
    }

    /// Deletes code that nothing has needed since the folder was opened.
    pub fn delete_unused(&self) {
        let unused: Vec<_> = {
            let files = self.lock();
            let unused = files.known.iter().filter(|(_, known)| known.used == 0);
            unused.map(|(file, _)| file.clone()).collect()
        };
        unused.iter().for_each(|file| self.remove(file));
    }

    fn remove(&self, file: &str) {
        let _ = self.disk.remove(file); // the next opening tries again
        self.lock().known.remove(file);
    }
}

impl CodeFiles {
    fn record_use(&mut self, file: &str) {
        self.uses += 1;
        if let Some(known) = self.known.get_mut(file) {
            known.used = self.uses;
        }
    }
}

fn file_name(name: &[u8; 32]) -> String {
    let mut text: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push_str(SUFFIX);
    text
}

/// True if `file_name` makes such names.
fn is_code_name(name: &str) -> bool {
    let digits = name.strip_suffix(SUFFIX).unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the HMAC-SHA256 (RFC 2104) over the parts in order.
fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut block = [0; HMAC_BLOCK_BYTES];
    match key.len() <= HMAC_BLOCK_BYTES {
        true => block[..key.len()].copy_from_slice(key),
        false => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let mut inner = Sha256::new();
    inner.update(block.map(|byte| byte ^ 0x36));
    parts.iter().for_each(|part| inner.update(part));
    let mut outer = Sha256::new();
    outer.update(block.map(|byte| byte ^ 0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    use reprise_env::SimDisk;

    use super::*;

    #[test]
    fn the_keyed_checksum_is_that_of_rfc_4231() {
        let hex = |sum: [u8; 32]| sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(hmac(
                &[0xaa; 131],
                &[b"Test Using Larger Than Block-Size Key - Hash Key First"]
            )),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    fn opened(disk: &SimDisk, secret: &[u8]) -> KeptCode {
        KeptCode::open(Arc::new(disk.clone()), secret).expect("open")
    }

    #[test]
    fn only_what_was_put_there_under_the_same_secret_and_name_comes_back() {
        let disk = SimDisk::new();
        opened(&disk, b"secret").put(&[1; 32], b"machine code");
        assert_eq!(
            opened(&disk, b"secret").get(&[1; 32]).as_deref(),
            Some(&b"machine code"[..])
        );
        assert_eq!(opened(&disk, b"secret").get(&[2; 32]), None);
        // Under another name, the same bytes are invalid.
        disk.rename(&file_name(&[1; 32]), &file_name(&[2; 32])).expect("rename");
        assert_eq!(opened(&disk, b"secret").get(&[2; 32]), None);
        assert_eq!(disk.list().expect("list"), [""; 0], "what is not ours goes");
        opened(&disk, b"secret").put(&[1; 32], b"machine code");
        assert_eq!(opened(&disk, b"another").get(&[1; 32]), None);
    }

    #[test]
    fn every_forged_bit_and_every_cut_is_found() {
        let disk = SimDisk::new();
        opened(&disk, b"secret").put(&[1; 32], b"machine code");
        let name = file_name(&[1; 32]);
        let file = disk.open_read(&name).expect("open");
        let mut whole = vec![0; file.len().expect("length") as usize];
        file.read_at(0, &mut whole).expect("read");
        let put = |bytes: &[u8]| {
            let _ = disk.remove(&name);
            disk.create(&name).expect("create").write_at(0, bytes).expect("write");
        };
        for bit in 0..whole.len() * 8 {
            let mut forged = whole.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            put(&forged);
            assert_eq!(opened(&disk, b"secret").get(&[1; 32]), None, "bit {bit}");
        }
        for length in 0..whole.len() {
            put(&whole[..length]);
            assert_eq!(opened(&disk, b"secret").get(&[1; 32]), None, "{length} bytes");
        }
        put(&whole);
        assert!(opened(&disk, b"secret").get(&[1; 32]).is_some());
    }

    #[test]
    fn unused_code_is_deleted_and_used_code_stays() {
        let disk = SimDisk::new();
        let kept = opened(&disk, b"secret");
        kept.put(&[1; 32], b"one");
        kept.put(&[2; 32], b"two");
        disk.create(UNFINISHED).expect("create");
        let kept = opened(&disk, b"secret");
        assert_eq!(disk.list().expect("list").len(), 2, "the unfinished file goes");
        assert!(kept.get(&[2; 32]).is_some());
        kept.delete_unused();
        assert_eq!(disk.list().expect("list"), [file_name(&[2; 32])]);
        assert!(kept.get(&[1; 32]).is_none() && kept.get(&[2; 32]).is_some());
    }

    #[test]
    fn files_of_other_names_stay_in_the_folder() {
        let disk = SimDisk::new();
        let upper = file_name(&[0xab; 32]).to_uppercase();
        let longer = format!("0{}", file_name(&[1; 32]));
        let others: [&str; 6] = [
            "a.code",
            "notes.code.bak",
            "thesis.txt",
            "unfinished.tmp.1",
            &upper,
            &longer,
        ];
        for name in others {
            disk.create(name).expect("create").write_at(0, b"x").expect("write");
        }
        let mut kept = opened(&disk, b"secret");
        kept.bytes_max = 400;
        kept.put(&[1; 32], &[0; 200]);
        kept.put(&[2; 32], &[0; 200]);
        kept.delete_unused();
        opened(&disk, b"secret").delete_unused();
        let left = disk.list().expect("list");
        assert!(
            others.iter().all(|name| left.iter().any(|left| left == name)),
            "{left:?}"
        );
        assert_eq!(left.len(), others.len(), "its own file, which is not used, went");
    }

    #[test]
    fn the_folder_is_bounded_and_the_longest_unused_goes_first() {
        let disk = SimDisk::new();
        let mut kept = opened(&disk, b"secret");
        kept.bytes_max = 900;
        let third = [0; 333 - HEADER_BYTES];
        kept.put(&[1; 32], &third);
        kept.put(&[2; 32], &third);
        assert!(kept.get(&[1; 32]).is_some());
        kept.put(&[3; 32], &third);
        let names = [1, 2, 3].map(|n| kept.get(&[n; 32]).is_some());
        assert_eq!(names, [true, false, true]);
        kept.put(&[4; 32], &[0; 1_000]);
        assert_eq!(disk.list().expect("list").len(), 2, "what is too long is not kept");
    }
}
