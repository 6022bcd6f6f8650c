//! Partitions away in a gathering: the site's other partitions keep working, and parked messages keep their order.

use std::time::Duration;

use crate::sites::Sites;
use reprise_base::PartitionId;
use reprise_partition::SiteMessage;

#[test]
fn other_partitions_go_on_while_one_is_away_and_its_own_messages_keep_their_order() {
    let sites = Sites::start(2);
    let (first, second) = (sites.gathering(&[0, 1], "0+1"), sites.gathering(&[0, 3], "0+3"));
    sites.gather(0, &first);
    sites.batch(0, "0a");
    sites.gather(0, &second);
    sites.batch(0, "0b");
    sites.batch(2, "2a");
    // Site 1 has not come yet: what needs partition 0 waits, partition 2 does not.
    assert_eq!(sites.after(1), ["2a"]);
    sites.batch(2, "2b");
    assert_eq!(sites.after(2), ["2a", "2b"]);
    sites.gather(1, &first);
    assert_eq!(sites.after(4), ["2a", "2b", "0+1", "0a"]);
    sites.batch(1, "1a");
    assert_eq!(sites.after(5)[4], "1a");
    sites.gather(1, &second);
    assert_eq!(sites.after(7)[5..], ["0+3", "0b"]);
    sites.stop();
}

#[test]
fn a_site_that_is_to_stop_or_to_run_a_job_first_gets_its_partitions_back() {
    let sites = Sites::start(2);
    let gathering = sites.gathering(&[0, 1], "0+1");
    sites.gather(0, &gathering);
    sites.batch(0, "0a");
    let note = sites.note("job");
    sites.send(
        0,
        SiteMessage::Job(Box::new(move |site| {
            (0..=2)
                .step_by(2)
                .for_each(|id| assert_eq!(site.partition(PartitionId(id)).id.0, id));
            note();
        })),
    );
    sites.gather(1, &gathering);
    assert_eq!(sites.after(3), ["0+1", "0a", "job"]);
    let last = sites.gathering(&[1, 2], "1+2");
    sites.gather(0, &last);
    sites.send(0, SiteMessage::Stop);
    std::thread::sleep(Duration::from_millis(20));
    sites.gather(1, &last);
    sites.send(1, SiteMessage::Stop);
    assert_eq!(sites.after(4)[3], "1+2");
    for thread in sites.threads {
        thread.join().expect("no site panics");
    }
}

/// Every pair of partitions in a random order, and single batches between them, on every number of sites. All of it ends, and each
/// partition sees its messages in the order of their sending.
#[test]
fn random_pairs_never_block_each_other() {
    for sites_count in 1..=4 {
        let sites = Sites::start(sites_count);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut sent: [Vec<String>; 4] = Default::default();
        for number in 0..2_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (a, b) = ((random >> 33) as u16 % 4, (random >> 43) as u16 % 4);
            let word = format!("{number}");
            sent[a as usize].push(word.clone());
            if a == b {
                sites.batch(a, &word);
                continue;
            }
            sent[b as usize].push(word.clone());
            let gathering = sites.gathering(&[a.min(b), a.max(b)], &word);
            let mut touched = [a % sites_count, b % sites_count].to_vec();
            touched.dedup();
            touched.iter().for_each(|site| sites.gather(*site, &gathering));
        }
        let happened = sites.after(2_000);
        for words in &sent {
            let seen: Vec<_> = happened.iter().filter(|word| words.contains(word)).collect();
            assert!(seen.iter().copied().eq(words), "{sites_count} sites");
        }
        sites.stop();
    }
}
