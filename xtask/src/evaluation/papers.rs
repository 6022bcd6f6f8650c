//! The figures of the papers: how each is measured, the paper's reading, and how ours differs. Those beside other databases have no paper.

/// A paper with its figures.
pub struct Paper {
    /// The first part of the figures' names.
    pub name: &'static str,
    /// The paper's name for `cargo xtask figures`.
    pub program: &'static str,
    pub title: &'static str,
    /// The set-up that all its figures share.
    pub about: &'static str,
    pub groups: &'static [Group],
}

/// Figures that are measured by one command.
pub struct Group {
    /// The program that measures them, where it is not the paper's.
    pub program: Option<&'static str>,
    pub figures: &'static [Figure],
    /// Flags of a run at full length: at most ten minutes for each figure, and 100 minutes for all.
    pub length: &'static [&'static str],
}

pub struct Figure {
    pub number: &'static str,
    /// The paper's reading.
    pub paper: &'static str,
    /// Why ours differs, or what it confirms.
    pub difference: &'static str,
}

const fn figure(number: &'static str, paper: &'static str, difference: &'static str) -> Figure {
    Figure {
        number,
        paper,
        difference,
    }
}

const COMMAND_LENGTH: &[&str] = &["--seconds", "2", "--runs", "3"];
/// 21 points, each with its load and most with a restart.
const DISTRIBUTED_LENGTH: &[&str] = &["--seconds", "2", "--runs", "2"];
const NV_LENGTH: &[&str] = &["--seconds", "2", "--runs", "3", "--delays-ns", "0,120,480"];
/// Runs with slow lines load their rows for longer than they measure.
const NV_SHORT_LENGTH: &[&str] = &["--seconds", "1", "--runs", "2", "--delays-ns", "0,480"];
const FRESH_LENGTH: &[&str] = &["--seconds", "3", "--runs", "2"];

const PEERS_LENGTH: &[&str] = &["--seconds", "1.5", "--runs", "3"];

pub const PAPERS: &[Paper] = &[LOOKING_GLASS, COMMAND_LOGGING, NV_LOGGING, QUERY_FRESH, PEERS];

const LOOKING_GLASS: Paper = Paper {
    name: "looking-glass",
    program: "looking-glass",
    title: "OLTP Through the Looking Glass",
    about: "Harizopoulos, Abadi, Madden and Stonebraker, 2008. These are two engines: a small paged one that was built for this \
            comparison, and ours. [The looking glass](looking-glass.md) says what each part does.",
    groups: &[
        Group {
            program: None,
            figures: &[
                figure(
                    "1",
                    "Each component takes 10 to 35 % of a New-Order, and 7 % are left without all of them.",
                    "B-tree keys and locks weigh about as much as in Shore. Latches and the log weigh less, and far more is left: the \
                     procedure with its typed rows, and look-ups in trees.",
                ),
                figure(
                    "5",
                    "A Payment loses 18 % by the log, 25 % by locks, 13 % by latches and 30 % by the buffer manager.",
                    "The same steps on a Payment of our paged engine, divided by portion.",
                ),
                figure(
                    "6",
                    "A New-Order takes ten times the instructions of a Payment. The largest win is the buffer manager.",
                    "The same steps on a New-Order of our paged engine, divided by portion.",
                ),
                figure(
                    "7",
                    "Larger pages alone save almost 14 % of a New-Order.",
                    "Larger pages save little here: new pages are rare with both sizes. Every step has its own build, in both orders.",
                ),
                figure(
                    "8",
                    "Shares of cycles are close to shares of instructions. Logging takes more cycles than instructions.",
                    "This machine has no counters for cycles, so processor time stands in their place.",
                ),
            ],
            length: &[],
        },
        Group {
            program: None,
            figures: &[figure(
                "components",
                "The paper has no such figure.",
                "A component takes at most twice the instructions of a published one, so none counts as built slow.",
            )],
            length: &[],
        },
    ],
};

const COMMAND_LOGGING: Paper = Paper {
    name: "command-logging",
    program: "command-logging",
    title: "Rethinking Main Memory OLTP Recovery",
    about: "Malviya, Weisberg, Madden and Stonebraker, 2014. The paper's server has 8 cores, a client machine and a disk with a \
            battery. Ours has one engine thread, and the generator runs on the other processor. \
            [Figures of command logging](command-logging-figures.md) says what a run is.",
    groups: &[
        Group {
            program: None,
            figures: &[
                figure(
                    "3",
                    "The command log costs next to nothing on Voter. The physiological log reaches 85 % of the others.",
                    "Neither log costs throughput here. A vote's record is written beside the engine, and the generator costs more than the record. \
                     Engine, generator and the log's writer share two processors, so runs differ by up to a third beyond 300,000 a second.",
                ),
                figure(
                    "4",
                    "Latency is 5 to 7 ms by the group commit. The physiological log adds 15 %.",
                    "Our server does not wait 5 ms for a group. It answers a call without a log in microseconds, and one with a log after a write \
                     to the disk. Beyond saturation the latency is that of 5,000 waiting calls.",
                ),
            ],
            length: COMMAND_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "5",
                "The physiological log of Voter is replayed five times as fast as the command log.",
                "Replay of commands is as fast as the run in both systems.",
            )],
            length: COMMAND_LENGTH,
        },
        Group {
            program: None,
            figures: &[
                figure(
                    "6",
                    "On TPC-C the physiological log reaches 66 % of the command log's throughput.",
                    "Ours costs no more than a log of commands. The records are made from the undo log at commit, and hold changed columns alone.",
                ),
                figure(
                    "7",
                    "The physiological log adds at least 45 % of latency on TPC-C at each load.",
                    "It does so here below saturation. Our server does not wait 5 ms for a group, so a call without a log is answered in microseconds.",
                ),
            ],
            length: COMMAND_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "8",
                "The physiological log of TPC-C is replayed 1.5 times as fast as the command log.",
                "Changes are replayed almost four times as fast here, because redo puts columns in place and searches no index. The paper leaves \
                     out the time in which the log is read. Ours contains it.",
            )],
            length: COMMAND_LENGTH,
        },
        Group {
            program: None,
            figures: &[
                figure(
                    "9",
                    "The gap of 1.5 times shrinks as transactions touch several partitions, and ends at 100 %.",
                    "The paper runs New-Orders alone. Ours runs the full mix on two partitions, whose engine threads fill both processors, so the log's writer \
                     takes its time from them.",
                ),
                figure(
                    "11",
                    "The command log is better at run time, and the physiological log is better at recovery.",
                    "The paper's figure is a summary in words. Ours gives both ratios.",
                ),
            ],
            length: DISTRIBUTED_LENGTH,
        },
        Group {
            program: Some("query-fresh"),
            figures: &[figure(
                "10",
                "With three copies of each partition, commands win by almost 2 times. Beyond 10 % distributed, both are alike.",
                "The paper has three servers. Here a primary and two standbys share one machine's processors.",
            )],
            length: FRESH_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "bytes",
                "A vote takes 55 bytes as a command and 81 as a change. TPC-C takes ten times as many as changes.",
                "Our records name the procedure by a number, and hold changed columns alone.",
            )],
            length: COMMAND_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "cut",
                "Records cut to 100 bytes raise the throughput of the physiological log by 1 %. So its cost is the making of records.",
                "Ours makes its records from the undo log at commit, and the flusher writes them on the other processor.",
            )],
            length: COMMAND_LENGTH,
        },
    ],
};

const NV_LOGGING: Paper = Paper {
    name: "nv-logging",
    program: "nvram",
    title: "NV-Logging",
    about: "Huang, Schwan and Qureshi, 2014. NVRAM is a file in memory here, as in the paper, and a delay for each line stands for \
            slower memory. [The log in NVRAM](nvram.md) names the schemes.",
    groups: &[
        Group {
            program: None,
            figures: &[figure(
                "9",
                "A file system costs 49 to 154 times a copy in memory for a log object, and 5 to 9.5 times for a group.",
                "A write to a file in memory takes about twice as long as a copy of a log object here. For a group both take about as long.",
            )],
            length: NV_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "11",
                "An insertion into one shared buffer takes 74 us with many threads. A buffer for each takes 2.5 us.",
                "The paper has up to 16 threads on as many processors. This machine has two.",
            )],
            length: NV_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "12",
                "NV-Logging takes TPC-C to 1.6 to 2.7 times of NV-Disk.",
                "Our engine spends less on a transaction than Shore-MT, so a log on a file system weighs more.",
            )],
            length: NV_SHORT_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "13",
                "NV-Logging takes TATP to 1.1 to 1.6 times of NV-Disk, and TPC-B to 1.3 to 2 times.",
                "Our engine spends less on a transaction than Shore-MT, so a log on a file system weighs more.",
            )],
            length: NV_SHORT_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "15",
                "The log's operations fall from 11.55 to 3.2 % of the time, and contention for it from 27.64 to 5.14 %.",
                "An engine thread waits for its log in place of a lock. There is no lock manager, so a file's time is a larger share.",
            )],
            length: NV_LENGTH,
        },
        Group {
            program: None,
            figures: &[figure(
                "16",
                "NV-Logging gives 2.61 to 6.72 times the throughput per dollar of NVRAM for everything.",
                "The prices are the paper's. All rows lie in DRAM here, which is most of what each scheme costs.",
            )],
            length: NV_LENGTH,
        },
    ],
};

const QUERY_FRESH: Paper = Paper {
    name: "query-fresh",
    program: "query-fresh",
    title: "Query Fresh",
    about: "Wang, Johnson and Pandis, 2017. The paper has up to eight nodes with 16 cores and InfiniBand. Here all nodes share the \
            processors of one machine and talk by TCP on the loopback. `query-fresh`, `pipelined`, `full-instantiation`, `async` and \
            `logical` are the server's own ways, and `replay-arrays` is the paper's. \
            [Replication figures](replication-figures.md) says what each series is.",
    groups: &[
        fresh(&[figure(
            "table-1",
            "A standby by RDMA costs a primary 4 to 6 %, and one by TCP up to 46 %.",
            "Ours has TCP alone, on the loopback, and the standby takes processor time from the primary.",
        )]),
        fresh(&[figure(
            "6",
            "Query Fresh keeps the primary's throughput with up to five standbys. Sync loses up to 46 % with one.",
            "Standbys share the primary's processors here, so each one costs throughput that a node of its own would not.",
        )]),
        fresh(&[figure(
            "7",
            "A standby with four replay threads stays above 99 % fresh. Other ways fall behind.",
            "Every way is fresh in the median here, because a standby slows down the primary with which it shares the processors. Samples are of one \
             clock, and count from the beginning of the run.",
        )]),
        fresh(&[figure(
            "8",
            "Pipelined replay costs the primary nothing. Synchronous replay does not scale beyond two standbys.",
            "Two processors serve primary, standbys and readers, so replay costs the primary what it takes of them. A synchronous standby makes the \
             primary wait, and costs it less.",
        )]),
        fresh(&[figure(
            "9",
            "Pipelined replay needs four threads at most. Synchronous replay needs half of the standby.",
            "Replay threads are the standby's sites, and this machine has processors for two.",
        )]),
        fresh(&[figure(
            "10",
            "Full instantiation slows the primary down, and replay arrays do not.",
            "Our server puts rows in place while nothing reads, so its own form is the full one here. It costs the primary a quarter more than arrays, \
             by the processor time that they share.",
        )]),
        fresh(&[figure(
            "11",
            "Pipelined replay adds at most 16 % to a commit. Synchronous replay takes 1.04 to 4.74 times as long.",
            "One call is on its way at a time here, and takes 72 us without a standby. The paper commits groups of 4 MB in 3.38 ms, beside which \
             the way to a standby is short.",
        )]),
        fresh(&[figure(
            "12",
            "CLWB costs up to 9 % of the ideal, and CLFLUSH up to 42 %.",
            "The standby's log is a file, a file in memory, or NVRAM. Replay threads persist nothing here.",
        )]),
        Group {
            program: Some("rdma"),
            figures: &[
                figure(
                    "6-rdma",
                    "Over InfiniBand a standby costs a primary 4 to 6 %, and over Ethernet up to 46 %.",
                    "Emulated: cards and processors are software in a virtual machine, so only the order of the series says anything.",
                ),
                figure(
                    "11-rdma",
                    "Pipelined replay over RDMA adds at most 16 % to a commit.",
                    "Emulated, as above. One call is on its way at a time.",
                ),
            ],
            length: &[],
        },
    ],
};

const fn fresh(figures: &'static [Figure]) -> Group {
    Group {
        program: None,
        figures,
        length: FRESH_LENGTH,
    }
}

const PEERS: Paper = Paper {
    name: "peers",
    program: "peers",
    title: "Beside other databases",
    about: "PostgreSQL, Redis, Valkey and SQLite get the same calls as this server, in the same run. \
            [Beside other databases](peers.md) says what is equal, and what is not.",
    groups: &[
        peers(&[figure(
            "voter",
            "No paper has this figure.",
            "A vote looks a contestant up, inserts a row, and adds one to a counter.",
        )]),
        peers(&[figure(
            "transfer",
            "No paper has this figure.",
            "A transfer changes two of 100,000 accounts. Many of them touch two of our partitions.",
        )]),
        peers(&[figure(
            "zipf",
            "No paper has this figure.",
            "One account takes part in more than half of the transfers, so locks on rows are waited for.",
        )]),
        peers(&[figure(
            "tpcb",
            "No paper has this figure.",
            "A booking changes three rows and inserts a fourth. Ten branches are the rows that bookings meet at.",
        )]),
        peers(&[figure(
            "new-order",
            "No paper has this figure.",
            "A New-Order changes some ten rows of stock and inserts a dozen. Reprise alone answers all lines.",
        )]),
    ],
};

const fn peers(figures: &'static [Figure]) -> Group {
    Group {
        program: None,
        figures,
        length: PEERS_LENGTH,
    }
}
