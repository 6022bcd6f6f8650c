//! Jobs over several partitions that keep their place in their stream alone: others pass them while they wait, and several run
//! in one meeting.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::sites::Sites;
use reprise_partition::{SiteMessage, Stream};

const A: Stream = Stream(1);
const B: Stream = Stream(2);

#[test]
fn calls_of_other_clients_go_on_while_a_partition_is_awaited() {
    let sites = Sites::start(2);
    let job = sites.gathering_of(A, &[0, 1], sites.note("0+1"));
    sites.gather(0, &job);
    sites.batch_of(Some(A), 0, "behind");
    sites.batch_of(Some(B), 0, "of another");
    sites.batch(0, "of nobody");
    // Partition 1 has not heard of the job yet.
    assert_eq!(sites.after(2), ["of another", "of nobody"]);
    sites.batch_of(Some(B), 0, "again");
    assert_eq!(sites.after(3)[2], "again");
    sites.gather(1, &job);
    assert_eq!(sites.after(5)[3..], ["0+1", "behind"]);
    sites.stop();
}

#[test]
fn jobs_that_wait_for_the_same_partitions_run_at_one_rendezvous() {
    let sites = Sites::start(2);
    let jobs: Vec<_> = (0..40)
        .map(|at| sites.gathering_of(Stream(at), &[0, 1], sites.note(&format!("{at}"))))
        .collect();
    jobs.iter().for_each(|job| sites.gather(0, job));
    sites.batch(0, "announced");
    sites.after(1);
    // Site 1 comes upon all of them while it is kept from looking up.
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    sites.send(1, SiteMessage::Job(Box::new(move |_| _ = receiver.recv())));
    jobs.iter().for_each(|job| sites.gather(1, job));
    drop(sender);
    let expected: Vec<_> = (0..40).map(|at| format!("{at}")).collect();
    assert_eq!(sites.after(41)[1..], expected);
    let stats = sites.shared.coordinator.stats();
    assert_eq!(stats.txns, 40);
    // Site 0 has nothing else to do, so the first of them calls the meeting. The others that have arrived by then join it.
    assert!(stats.rendezvous <= 2, "{stats:?}");
    sites.stop();
}

#[test]
fn a_barrier_comes_after_all_that_was_sent_before_it_and_before_all_behind_it() {
    let sites = Sites::start(2);
    let (job, strict) = (
        sites.gathering_of(A, &[0, 1], sites.note("0+1")),
        sites.gathering(&[0, 1, 2, 3], "all"),
    );
    let last = sites.gathering_of(B, &[0, 1], sites.note("last"));
    sites.gather(0, &job);
    sites.batch_of(Some(A), 0, "0a");
    sites.batch(0, "0b");
    sites.gather(0, &strict);
    sites.batch(0, "0c");
    sites.gather(0, &last);
    assert_eq!(sites.after(1), ["0b"]);
    sites.gather(1, &job);
    assert_eq!(sites.after(3), ["0b", "0+1", "0a"]);
    sites.gather(1, &strict);
    assert_eq!(sites.after(5)[3..], ["all", "0c"]);
    sites.gather(1, &last);
    assert_eq!(sites.after(6)[5], "last");
    sites.stop();
}

/// Many streams of single batches and of jobs over random partitions, with strict gatherings between them, on every number of sites. All of
/// it ends. Each partition sees each stream's messages in the order of their sending. A strict gathering comes after all earlier and before
/// all later messages.
#[test]
fn random_streams_keep_their_order_and_never_block_each_other() {
    for sites_count in 1..=4 {
        let sites = Sites::start(sites_count);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64 + u64::from(sites_count);
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        // Stream (0: strict) and word of each call, by partition and in the order of sending.
        let mut sent: [Vec<(u64, String)>; 4] = Default::default();
        let count = 6_000;
        for number in 0..count {
            let (stream, word) = (1 + next(9), format!("{number}"));
            let mut touched: Vec<u16> = (0..4).filter(|_| next(3) == 0).collect();
            let is_strict = next(200) == 0;
            if touched.is_empty() {
                touched.push(next(4) as u16);
            }
            for partition in &touched {
                let of = if is_strict { 0 } else { stream };
                sent[*partition as usize].push((of, word.clone()));
            }
            match (is_strict, &touched[..]) {
                (true, _) => sites.send_gathering(&sites.gathering(&touched, &word)),
                (false, [one]) => sites.batch_of(Some(Stream(stream)), *one, &word),
                (false, _) => {
                    let job = sites.gathering_of(Stream(stream), &touched, sites.note(&word));
                    sites.send_gathering(&job);
                }
            }
        }
        let happened = sites.after(count);
        let mut at = vec![0; count];
        for (place, word) in happened.iter().enumerate() {
            at[word.parse::<usize>().expect("a number")] = place;
        }
        let place = |word: &str| at[word.parse::<usize>().expect("a number")];
        for messages in &sent {
            for (earlier, (stream, word)) in messages.iter().enumerate() {
                let later = messages[earlier + 1..].iter();
                let mut bound = later.filter(|(other, _)| *stream == 0 || *other == 0 || other == stream);
                if let Some((_, other)) = bound.next() {
                    assert!(place(word) < place(other), "{sites_count} sites: {word} and {other}");
                }
            }
        }
        sites.stop();
    }
}

/// Jobs over two partitions come without end until the one over three has run; it is not kept waiting for ever.
#[test]
fn a_job_over_many_partitions_runs_in_a_storm_of_jobs_over_few() {
    let sites = Sites::start(3);
    let has_run = Arc::new(AtomicBool::new(false));
    let flag = has_run.clone();
    let mut sent = 0;
    let mut storm = |count: usize| {
        for _ in 0..count {
            let pair = [[0, 1], [1, 2], [0, 2]][sent % 3];
            let stream = Stream(1 + sent as u64 % 50);
            sites.send_gathering(&sites.gathering_of(stream, &pair, sites.note("pair")));
            sent += 1;
        }
        // At most 500 calls wait at once.
        sites.after(sent.saturating_sub(500));
    };
    storm(1_000);
    let job = sites.gathering_of(Stream(0), &[0, 1, 2], move || flag.store(true, Ordering::Relaxed));
    sites.send_gathering(&job);
    for _ in 0..1_000 {
        storm(100);
        if has_run.load(Ordering::Relaxed) {
            break;
        }
    }
    assert!(
        has_run.load(Ordering::Relaxed),
        "{:?}",
        sites.shared.coordinator.stats()
    );
    sites.after(sent);
    let stats = sites.shared.coordinator.stats();
    println!("{stats:?}");
    assert_eq!(stats.txns, sent as u64 + 1);
    sites.stop();
}
