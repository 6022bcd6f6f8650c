//! Files that are not what the server wrote.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned};
use reprise_test_process::{Tally, check, open_accounts, snapshot, verify};

/// Bytes of a segment before its first block.
const SEGMENT_HEADER_BYTES: u64 = 512;

/// A database that was closed in order, or killed.
fn database(dir: &Path, killed: bool) -> Result<(Launch, Tally)> {
    let launch = Launch::new(&dir.join("data")).args(&["--partitions", "2"]);
    let mut server = Server::start(&launch)?;
    let tally = open_accounts(&server, 30)?;
    match killed {
        true => server.kill()?,
        false => drop(server.terminate()?),
    }
    Ok((launch, tally))
}

/// The one segment file.
fn segment(launch: &Launch) -> Result<PathBuf> {
    let files = fs::read_dir(launch.data_dir.join("log"))?.map(|entry| Ok(entry?.path()));
    let files: Vec<PathBuf> = files.collect::<Result<_>>()?;
    // Beside it lies the file that is prepared for the next one.
    let is_log = |path: &&PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("log-"))
    };
    let mut found = files.iter().filter(is_log);
    let segment = found.next().context("a segment file")?;
    ensure!(found.next().is_none(), "several segments: {files:?}");
    Ok(segment.clone())
}

/// Returns the end of the log's blocks in the file.
fn end(launch: &Launch) -> Result<u64> {
    let bytes = verify(&launch.data_dir)?["bytes"].as_u64().context("the log's bytes")?;
    Ok(bytes + SEGMENT_HEADER_BYTES)
}

fn flip(path: &Path, offset: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[byte[0] ^ 0x10], offset)?;
    Ok(())
}

#[test]
fn a_flipped_byte_stops_the_opening_and_nothing_is_changed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (launch, tally) = database(dir.path(), false)?;
    let (file, end) = (segment(&launch)?, end(&launch)?);
    let name = file.file_name().context("a name")?.to_string_lossy().into_owned();
    // The bytes are in the segment's header, in a module, in the middle, and near the end.
    for offset in [20, 2_000, end / 2, end / 3 * 2 + 1, end - 3_000] {
        flip(&file, offset)?;
        let before = snapshot(&launch.data_dir)?;
        let mut process = Spawned::start(&launch)?;
        let status = process.wait()?;
        let errors = process.errors();
        ensure!(status.code() == Some(1), "byte {offset} flipped: {status}: {errors}");
        let tells = [name.as_str(), " at byte ", "LSN ", "Nothing was changed"];
        let missing: Vec<_> = tells.iter().filter(|part| !errors.contains(**part)).collect();
        ensure!(
            missing.is_empty(),
            "byte {offset} flipped: {missing:?} is not told: {errors}"
        );
        ensure!(
            snapshot(&launch.data_dir)? == before,
            "byte {offset} flipped: the opening changed files"
        );
        let verified = verify(&launch.data_dir)?;
        ensure!(verified["whole"] == false, "log verify calls it whole: {verified}");
        flip(&file, offset)?;
    }
    check(&Server::start(&launch)?, &[tally])
}

#[test]
fn garbage_behind_the_end_is_cut() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (launch, tally) = database(dir.path(), true)?;
    let (file, end) = (segment(&launch)?, end(&launch)?);
    let garbage: Vec<u8> = (0..3000u32)
        .map(|byte| (byte.wrapping_mul(2_654_435_761) >> 13) as u8 | 1)
        .collect();
    OpenOptions::new()
        .write(true)
        .open(&file)?
        .write_all_at(&garbage, end)?;
    let mut server = Server::start(&launch)?;
    server.wait_said("cut off").context("the cut is not told")?;
    check(&server, std::slice::from_ref(&tally))?;
    let more = server.call("bank/open", r#"{"account": 7, "balance": 0}"#)?;
    ensure!(more.status == 200, "{}", more.text());
    server.kill()?;
    let mut tally = tally;
    tally.acknowledged.push(7);
    check(&Server::start(&launch)?, &[tally])
}

#[test]
fn a_catalog_that_is_gone_or_garbage_is_made_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (launch, tally) = database(dir.path(), false)?;
    let catalog = launch.data_dir.join("catalog");
    let (made, again) = ("the catalog is made from the log", "made again from the log");
    let damages: [(&str, &str, &dyn Fn() -> Result<()>); 3] = [
        ("deleted", made, &|| Ok(fs::remove_dir_all(&catalog)?)),
        ("overwritten", again, &|| {
            overwrite(&catalog, |bytes| {
                bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31) ^ 0x5a)
            })
        }),
        ("emptied", again, &|| overwrite(&catalog, Vec::clear)),
    ];
    for (what, told, damage) in damages {
        damage()?;
        let mut server = Server::start(&launch).with_context(|| format!("the catalog was {what}"))?;
        let module = server.get("/v1/modules/bank")?;
        ensure!(module.status == 200, "{what}: {}", module.text());
        check(&server, std::slice::from_ref(&tally)).with_context(|| format!("the catalog was {what}"))?;
        server
            .wait_said(told)
            .with_context(|| format!("the catalog was {what}"))?;
        let (status, errors) = server.terminate()?;
        ensure!(status.code() == Some(0), "{what}: {status}: {errors}");
        // Whole again: the next start has nothing to tell.
        let mut server = Server::start(&launch)?;
        server.wait_said("ready: ")?;
        let (_, errors) = server.terminate()?;
        ensure!(!errors.contains("the catalog"), "{what}: it was not kept: {errors}");
    }
    Ok(())
}

fn overwrite(dir: &Path, change: impl Fn(&mut Vec<u8>) + Copy) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            overwrite(&path, change)?;
        } else {
            let mut bytes = fs::read(&path)?;
            change(&mut bytes);
            fs::write(&path, bytes)?;
        }
    }
    Ok(())
}
