//! One round: a store of its own from opening to closing, its threads, and the look for leaks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tensortier_storage::clock::Clock;
use tensortier_storage::dtype::DType;
use tensortier_storage::path::memory::MemoryPath;
use tensortier_storage::store::Store;

use super::check::{all_readable, eventually, nothing_stays};
use super::config::Config;
use super::held::Held;
use super::numbers::{Numbers, mix};
use super::places::{Place, Places};
use super::resources::Resources;
use super::watch::Watch;
use super::worker::{Common, PATIENCE, Worker};

const SHARED_KEYS: u64 = 3;

/// What a round came to.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub(super) config: String,
    pub(super) operations: u64,
    pub(super) refused: u64,
    pub(super) faults: u64,
    pub(super) drawn: u64,
    pub(super) outcome: u64,
    pub(super) loads: u64,
    pub(super) written: u64,
}

/// What was wrong, in which thread and at which of its operations.
pub(super) type Wrong = (Option<usize>, u64, String);

/// How a round is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) base: &'a Path,
    pub(super) seed: u64,
    pub(super) threads: usize,
    pub(super) single: bool,
    pub(super) until: Option<Instant>,
}

/// Runs one round.
///
/// # Errors
/// What must not be.
pub(super) fn round(
    setting: &Setting<'_>,
    hung: impl Fn(String) + Send + 'static,
) -> Result<Outcome, Wrong> {
    let at_end = |what: String| (None, 0, what);
    let before = Resources::now();
    let mut numbers = Numbers::part(setting.seed, u64::MAX);
    let config = Config::draw(&mut numbers, setting.threads as u64, setting.single);
    let common = Arc::new(open(setting, config, &mut numbers).map_err(at_end)?);
    let watch = Watch::start(&common, hung);
    let places = Arc::clone(&common.places);
    let (outcome, kept) = hammer(setting, common)?;
    // The last answers are given out while the store closes; then the watch is over.
    drop(watch);
    kept.iter().try_for_each(Held::check).map_err(at_end)?;
    drop(kept);
    places.all().iter().try_for_each(|place| match place.left_behind() {
        Some(left) => Err(at_end(format!("after closing: {left}"))),
        None => Ok(()),
    })?;
    drop(places);
    eventually(|| Resources::now().more_than(&before)).map_err(at_end)?;
    Ok(outcome)
}

fn open(setting: &Setting<'_>, config: Config, numbers: &mut Numbers) -> Result<Common, String> {
    let places = Arc::new(Places::default());
    let clock = if setting.single { Clock::manual() } else { Clock::system() };
    let mut builder = Store::builder()
        .host_budget(config.budget)
        .chunk_bytes(config.chunk_bytes)
        .checksums(config.checksums)
        .wait_for_leases(config.patience)
        .clock(clock.clone());
    for path in &config.paths {
        let place = Place::open(setting.base, path).map_err(|error| format!("path: {error}"))?;
        place.set_room(Some(0));
        place.trouble(false);
        builder = builder.path_store(Arc::clone(&place.store));
        places.add(place);
    }
    let store = builder.open().map_err(|error| format!("opening: {error}"))?;
    let mut shared = BTreeMap::new();
    for index in 0..SHARED_KEYS {
        let len = numbers.below(config.budget / 2 + 1).max(1);
        let mut bytes = vec![0; len as usize];
        numbers.fill(&mut bytes);
        let key = format!("shared/{index}");
        let put = store.put(&key, DType::U8, &[len], &bytes);
        put.map_err(|error| format!("putting {key}: {error}"))?;
        shared.insert(key, Arc::new(bytes));
    }
    if !setting.single {
        places.all().iter().for_each(|place| place.trouble(true));
    }
    Ok(Common {
        store,
        config,
        places,
        base: setting.base.to_owned(),
        shared,
        stop: AtomicBool::new(false),
        until: setting.until,
        single: setting.single,
        clock,
        progress: (0..setting.threads).map(|_| AtomicU64::new(0)).collect(),
    })
}

/// Lets the threads work, then checks all and closes the store. Returns leases that outlive it.
fn hammer(setting: &Setting<'_>, common: Arc<Common>) -> Result<(Outcome, Vec<Held>), Wrong> {
    let at_end = |what: String| (None, 0, what);
    let workers = std::thread::scope(|scope| {
        let spawn = |id: usize| {
            let numbers = Numbers::part(setting.seed, id as u64);
            let common = &*common;
            scope.spawn(move || {
                let mut worker = Worker::new(common, id, numbers);
                let result = worker.run();
                let Worker { model, held, operations, refused, drawn, outcome, .. } = worker;
                (result, model, held, operations, refused, drawn, outcome)
            })
        };
        let threads: Vec<_> = (0..setting.threads).map(spawn).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let mut outcome = Outcome { config: common.config.describe(), ..Outcome::default() };
    let (mut models, mut kept) = (Vec::new(), Vec::new());
    for (id, joined) in workers.into_iter().enumerate() {
        let Ok((result, model, held, operations, refused, drawn, came)) = joined else {
            return Err((Some(id), 0, String::from("panicked")));
        };
        result.map_err(|what| (Some(id), operations, what))?;
        outcome.operations += operations;
        outcome.refused += refused;
        outcome.drawn = mix(outcome.drawn ^ drawn);
        outcome.outcome = mix(outcome.outcome ^ came);
        models.push(model);
        kept.extend(held);
    }
    let places = common.places.all();
    places.iter().for_each(|place| place.trouble(false));
    outcome.faults = places.iter().map(Place::faults).sum();
    drop(places);
    // Every other round is closed as it is, with leases that outlive it.
    let clean = setting.seed.is_multiple_of(2);
    kept.iter().try_for_each(Held::check).map_err(at_end)?;
    if clean {
        kept.clear();
        // Quotas of directories cannot be raised: another path gives room again.
        let more = Arc::new(MemoryPath::new("more", 1e9));
        common.store.add_path_store(more).map_err(|error| at_end(format!("path: {error}")))?;
        all_readable(&common, &models).map_err(at_end)?;
        nothing_stays(&common).map_err(at_end)?;
    }
    let counters = common.store.stats().counters;
    (outcome.loads, outcome.written) = (counters.loads, counters.written);
    let store = common.store.clone();
    drop(common);
    store.close(PATIENCE).map_err(|error| at_end(format!("closing: {error}")))?;
    kept.iter().try_for_each(Held::check).map_err(at_end)?;
    if kept.is_empty() {
        let host = store.stats().host;
        eventually(|| (store.stats().host.in_use > 0).then(|| format!("after closing: {host:?}")))
            .map_err(at_end)?;
    }
    Ok((outcome, kept))
}

/// Counts panics of any thread of the process: one of the store's threads that panics is a finding
/// even if nothing else shows it.
pub(super) fn count_panics() -> Arc<AtomicU64> {
    static PANICS: std::sync::Mutex<Option<Arc<AtomicU64>>> = std::sync::Mutex::new(None);
    let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(panics.get_or_insert_with(|| {
        let count = Arc::new(AtomicU64::new(0));
        let (counting, earlier) = (Arc::clone(&count), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            counting.fetch_add(1, Ordering::SeqCst);
            earlier(info);
        }));
        count
    }))
}

/// Returns until when a round of a run that ends at `end` may last.
pub(super) fn until(end: Instant, single: bool) -> Option<Instant> {
    // Alone, a round is as long as its operations, so that it repeats.
    (!single).then(|| end.min(Instant::now() + Duration::from_secs(5)))
}
