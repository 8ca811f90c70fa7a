//! One round: a store of its own from opening to closing, its threads, and the look for leaks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tensortier_storage::clock::Clock;
use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::id::PathId;
use tensortier_storage::path::memory::MemoryPath;
use tensortier_storage::store::Store;

use super::check::{all_readable, eventually, in_use, nothing_stays};
use super::config::Config;
use super::content::{Content, contents};
use super::files::Adopted;
use super::gpu::Gpu;
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
    /// Chunks that were stored in fewer bytes.
    pub(super) packed: u64,
    /// Transfers that a path did not answer for longer than it may.
    pub(super) hung: u64,
    /// Whether a path did not answer while the store was closed.
    pub(super) closed_hung: bool,
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
    let (common, adopted) = open(setting, config, &mut numbers).map_err(at_end)?;
    let common = Arc::new(common);
    let watch = Watch::start(&common, hung);
    let (places, gpu) = (Arc::clone(&common.places), common.gpu.clone().map(|(gpu, _)| gpu));
    let (mut outcome, models, mut kept) = hammer(setting, &common, adopted.as_ref())?;
    let closed = close(setting, common, models, &mut kept).map_err(at_end)?;
    outcome.closed_hung = closed.hung;
    kept.iter().try_for_each(Held::check).map_err(at_end)?;
    drop(kept);
    // What hangs is answered now; the last answers were given out while the store closed.
    places.release();
    eventually(|| {
        let gpu = gpu.as_ref().map_or(0, Gpu::in_use);
        let host = in_use(&closed.store);
        (host + gpu > 0)
            .then(|| format!("after closing: {host} bytes of memory, {gpu} of a device"))
    })
    .map_err(at_end)?;
    drop(watch);
    drop((adopted, closed.store));
    eventually(|| places.all().iter().find_map(|place| place.left_behind(closed.hung)))
        .map_err(|left| at_end(format!("after closing: {left}")))?;
    drop((places, gpu));
    eventually(|| Resources::now().more_than(&before)).map_err(at_end)?;
    Ok(outcome)
}

fn open(
    setting: &Setting<'_>,
    config: Config,
    numbers: &mut Numbers,
) -> Result<(Common, Option<Adopted>), String> {
    let failed = |attempted: &str, error: Error| format!("{attempted}: {error}");
    let places = Arc::new(Places::default());
    let clock = if setting.single { Clock::manual() } else { Clock::system() };
    let mut builder = Store::builder()
        .host_budget(config.budget)
        .chunk_bytes(config.chunk_bytes)
        .checksums(config.checksums)
        .placement(config.placement)
        .compression(config.compression)
        .packing_bytes(config.packing)
        .wait_for_leases(config.patience)
        .clock(clock.clone());
    for (id, path) in (0..).map(PathId).zip(&config.paths) {
        let place = Place::open(setting.base, path).map_err(|error| failed("path", error))?;
        place.set_room(Some(0));
        place.trouble(false);
        builder = builder.path_store(Arc::clone(&place.store));
        places.add(id, place);
    }
    let store = builder.open().map_err(|error| failed("opening", error))?;
    let mut shared = BTreeMap::new();
    for index in 0..SHARED_KEYS {
        let len = numbers.below(config.budget / 2 + 1).max(1);
        let (key, bytes) = (format!("shared/{index}"), contents(numbers.next(), len));
        put_first(&store, &key, &bytes).map_err(|error| failed(&key, error))?;
        shared.insert(key, Arc::new(bytes));
    }
    let adopted = config.adopts.then(|| adopt(setting, &store, &config, numbers)).transpose()?;
    let gpu = config.device_budget.map(|budget| {
        let gpu = Gpu::new(Duration::from_micros(numbers.pick(&[0, 50, 1000])));
        let tier = store.attach_device(gpu.device(), budget);
        tier.map(|tier| (gpu, tier)).map_err(|error| failed("attaching a device", error))
    });
    let gpu = gpu.transpose()?;
    for (key, bytes) in adopted.iter().flat_map(|adopted| &adopted.tensors) {
        if key.starts_with("shared/") {
            shared.insert(key.clone(), Arc::new(bytes.clone()));
        }
    }
    if !setting.single {
        places.all().iter().for_each(|place| place.trouble(true));
    }
    let common = Common {
        store,
        config,
        places,
        base: setting.base.to_owned(),
        shared,
        stop: AtomicBool::new(false),
        until: setting.until,
        clock,
        gpu,
        progress: (0..setting.threads).map(|_| AtomicU64::new(0)).collect(),
    };
    Ok((common, adopted))
}

/// Puts an object before anything goes wrong on purpose. On a busy machine a file may still take longer
/// than the short deadline of a path that is to hang later: that is tried again.
fn put_first(store: &Store, key: &str, bytes: &[u8]) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        match store.put(key, DType::U8, &[bytes.len() as u64], bytes) {
            Err(Error::PathHung { .. }) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other.map(drop),
        }
    }
}

/// Makes objects of a file's tensors: one that all read, and some of each thread.
fn adopt(
    setting: &Setting<'_>,
    store: &Store,
    config: &Config,
    numbers: &mut Numbers,
) -> Result<Adopted, String> {
    std::fs::create_dir_all(setting.base).map_err(|error| error.to_string())?;
    let own = (0..setting.threads).flat_map(|id| (0..2).map(move |n| format!("own/{id}/{n}")));
    let names = own.chain([String::from("shared/file")]).collect();
    let longest = (config.chunk_bytes * 3).min(config.longest);
    Adopted::open(store, setting.base, names, longest, numbers)
        .map_err(|error| format!("adopting a file: {error}"))
}

type Models = Vec<BTreeMap<String, Content>>;

/// Lets the threads work. Returns what must be there afterwards, and leases that are held.
fn hammer(
    setting: &Setting<'_>,
    common: &Common,
    adopted: Option<&Adopted>,
) -> Result<(Outcome, Models, Vec<Held>), Wrong> {
    let workers = std::thread::scope(|scope| {
        let spawn = |id: usize| {
            let numbers = Numbers::part(setting.seed, id as u64);
            let own = format!("own/{id}/");
            let tensors = adopted.iter().flat_map(|adopted| &adopted.tensors);
            let model = tensors
                .filter(|(key, _)| key.starts_with(&own))
                .map(|(key, bytes)| (key.clone(), Content::new(bytes.clone(), false)))
                .collect();
            scope.spawn(move || {
                let mut worker = Worker::new(common, id, numbers, model);
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
    outcome.faults = common.places.all().iter().map(Place::faults).sum();
    let counters = common.store.stats().counters;
    (outcome.loads, outcome.written) = (counters.loads, counters.written);
    (outcome.packed, outcome.hung) = (counters.packed, counters.hung);
    Ok((outcome, models, kept))
}

/// A store that was closed.
struct Closed {
    store: Store,
    /// Whether a path did not answer meanwhile.
    hung: bool,
}

/// Checks what the threads left and closes the store. Every other round is closed as it is: `kept`
/// outlives it, and paths may hang.
fn close(
    setting: &Setting<'_>,
    common: Arc<Common>,
    mut models: Models,
    kept: &mut Vec<Held>,
) -> Result<Closed, String> {
    let clean = setting.seed.is_multiple_of(2);
    let hangs = common.config.paths_hang && !clean;
    kept.iter().try_for_each(Held::check)?;
    common.places.all().iter().for_each(|place| place.trouble(false));
    common.places.release();
    if hangs {
        stall_some(setting, &common);
    }
    if clean {
        kept.clear();
        // Quotas of directories cannot be raised: another path gives room again.
        let more = Arc::new(MemoryPath::new("more", 1e9));
        common.store.add_path_store(more).map_err(|error| format!("path: {error}"))?;
        all_readable(&common, &mut models)?;
        nothing_stays(&common)?;
    }
    let store = common.store.clone();
    // A tier may end with its last owner, or with the store.
    let tier = common.gpu.clone().filter(|_| setting.seed & 2 == 0);
    drop(common);
    let grace = if hangs { Duration::from_millis(100) } else { PATIENCE };
    let begun = Instant::now();
    let closed = store.close(grace);
    drop(tier);
    if begun.elapsed() > grace + PATIENCE {
        return Err(format!("closing took {:?} with a grace of {grace:?}", begun.elapsed()));
    }
    match closed {
        Ok(()) => Ok(Closed { store, hung: false }),
        Err(error) if hangs && error.kind() == ErrorKind::Timeout => {
            Ok(Closed { store, hung: true })
        }
        Err(error) => Err(format!("closing: {error}")),
    }
}

/// Has some paths hang for good, with something to do.
fn stall_some(setting: &Setting<'_>, common: &Common) {
    let store = &common.store;
    for index in 0..8 {
        // Where there is no room for more there is enough to be done.
        let _ = store.put(&format!("late/{index}"), DType::U8, &[4000], &[index; 4000]);
    }
    for (index, (_, place)) in common.places.active().into_iter().enumerate() {
        if index == 0 || setting.seed >> (8 + index) & 1 == 0 {
            place.stall_for_good();
        }
    }
    drop(store.flush_async());
    for key in store.list("") {
        let _ = store.prefetch(&key.to_string());
    }
    // Long enough for some deadlines to pass, and not for others.
    std::thread::sleep(Duration::from_millis(setting.seed >> 16 & 127));
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
