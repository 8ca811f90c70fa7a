//! A short soak: two seeds with threads, and one alone that must repeat exactly.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use tensortier_bench::soak::{Options, Summary, run};

fn soak(options: &Options) -> Summary {
    run(options, |line| println!("{line}"), |hang| panic!("{hang}"))
        .unwrap_or_else(|violation| panic!("{violation}"))
}

// One test: it counts the descriptors and threads of the whole process.
#[test]
fn a_short_soak_finds_nothing_and_repeats() {
    let options = Options {
        time: Duration::from_secs(2),
        rounds: u64::MAX,
        first: 0,
        seed: 7,
        threads: 4,
        single: false,
        dir: "/var/tmp".into(),
    };
    assert!(soak(&options).operations > 0);
    let alone = Options {
        time: Duration::from_secs(60),
        rounds: 4,
        single: true,
        seed: 1,
        first: 0,
        ..options
    };
    let (first, second) = (soak(&alone), soak(&alone));
    assert_eq!((first.drawn, first.outcome), (second.drawn, second.outcome));
}
