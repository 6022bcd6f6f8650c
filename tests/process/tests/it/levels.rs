//! The safety level of a cluster outlives its servers' own settings.

use anyhow::{Result, ensure};
use reprise_test_crash::run_verb;
use reprise_test_process::{Cluster, promote};

#[test]
fn a_promoted_standby_has_the_level_of_its_cluster_until_that_is_changed() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut a = cluster.primary("a", &["--safety", "2-safe"])?;
    let mut b = cluster.standby("b", &a, &["--safety", "1-safe"])?;
    reprise_test_process::wait_reached(&a, &[], ("2-safe", &[&b]))?;
    a.kill()?;
    promote(&b)?;
    let told = reprise_test_process::replication(&b, &[])?;
    ensure!(told["safety"] == "2-safe", "{told}");
    b.kill()?;
    let dir = cluster.path("b").to_string_lossy().into_owned();
    let shown = run_verb(&["node", "show", &dir])?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    ensure!(shown.contains("safety") && shown.contains("2-safe"), "{shown}");
    // The directory tells it, and another one is not taken unawares.
    let own = ["serve", "--data-dir", &dir, "--listen", "127.0.0.1:0"];
    for (args, status, part) in [
        (
            &["--ship-listen", "127.0.0.1:0", "--safety", "1-safe"][..],
            1,
            "--safety 1-safe --change-safety",
        ),
        (&[][..], 2, "ship-listen"),
        (&["--change-safety"][..], 2, "--safety LEVEL"),
    ] {
        let ended = run_verb(&[&own[..], args].concat())?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(
            ended.status.code() == Some(status) && said.contains(part),
            "{args:?}: {ended:?}"
        );
    }
    let b = cluster.primary("b", &[])?;
    ensure!(
        reprise_test_process::replication(&b, &[])?["safety"] == "2-safe",
        "as its cluster"
    );
    drop(b);
    let b = cluster.primary("b", &["--safety", "1-safe", "--change-safety"])?;
    ensure!(
        reprise_test_process::replication(&b, &[])?["safety"] == "1-safe",
        "as it was changed"
    );
    drop(b);
    let b = cluster.primary("b", &["--safety", "1-safe"])?;
    ensure!(
        reprise_test_process::replication(&b, &[])?["safety"] == "1-safe",
        "and kept"
    );
    Ok(())
}
