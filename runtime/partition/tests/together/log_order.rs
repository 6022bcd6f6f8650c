//! Rendezvous that every site comes upon in one order, as in a replay.

use std::sync::Arc;

use crate::sites::Sites;
use reprise_base::PartitionId;
use reprise_partition::{Rendezvous, Site, SiteMessage, TxnPartitions};

/// Brings this site's partitions to each rendezvous in order, and continues when they are home again.
fn walk(mut left: std::vec::IntoIter<Arc<Rendezvous>>, site: &mut Site, over: impl FnOnce(&mut Site) + Send + 'static) {
    while let Some(next) = left.next() {
        site.join(&next);
        if site.has_away() {
            return site.resume_with(move |site| walk(left, site, over));
        }
    }
    over(site);
}

#[test]
fn sites_that_meet_in_one_order_run_everything_in_it_and_have_their_partitions_back() {
    for sites_count in 1..=4u16 {
        let sites = Sites::start(sites_count);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64 + u64::from(sites_count);
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let mut works: Vec<Vec<Arc<Rendezvous>>> = vec![Vec::new(); sites_count as usize];
        // Words of each partition in the order of the log.
        let mut expected: [Vec<String>; 4] = Default::default();
        let count = 3_000;
        for number in 0..count {
            let word = format!("{number}");
            let mut partitions: Vec<u16> = (0..4).filter(|_| next(2) == 0).collect();
            if partitions.is_empty() {
                partitions.push(next(4) as u16);
            }
            let touched = TxnPartitions::Some(partitions.iter().map(|id| PartitionId(*id)).collect());
            partitions
                .iter()
                .for_each(|id| expected[*id as usize].push(word.clone()));
            let rendezvous = Arc::new(Rendezvous::in_log_order(touched.clone(), 4));
            rendezvous.push(sites.job(&partitions, sites.note(&word)));
            for site in touched.sites(sites_count) {
                works[site].push(rendezvous.clone());
            }
        }
        for (site, work) in works.into_iter().enumerate() {
            let note = sites.note("over");
            let over = move |at_home: &mut Site| {
                let own = (site as u16..4).step_by(sites_count as usize);
                own.map(PartitionId)
                    .for_each(|id| assert_eq!(at_home.partition(id).id, id));
                note();
            };
            let job = move |site: &mut Site| walk(work.into_iter(), site, over);
            sites.send(site as u16, SiteMessage::Job(Box::new(job)));
            sites.batch(site as u16, "behind");
        }
        let happened = sites.after(count + 2 * sites_count as usize);
        for words in &expected {
            let seen: Vec<_> = happened.iter().filter(|word| words.contains(word)).collect();
            assert!(seen.iter().copied().eq(words), "{sites_count} sites");
        }
        sites.stop();
    }
}
