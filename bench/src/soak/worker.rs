//! One thread of a round: draws operations, applies them to the store and to its model, and compares.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tensortier_storage::clock::Clock;
use tensortier_storage::error::Error;
use tensortier_storage::store::{DeviceTier, Schedule, Store};

use super::config::Config;
use super::content::Content;
use super::gpu::Gpu;
use super::held::Held;
use super::numbers::{Numbers, mix};
use super::operation::{Operation, Verb};
use super::places::Places;

/// How an operation ended: what must not be is in the error.
pub(super) type Done = Result<(), String>;

/// Longer than any answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How long an operation takes on a clock that is moved by hand.
const OPERATION_TIME: Duration = Duration::from_millis(20);

/// What a round's threads share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) store: Store,
    pub(super) config: Config,
    pub(super) places: Arc<Places>,
    pub(super) base: std::path::PathBuf,
    /// Objects that all read and nobody changes.
    pub(super) shared: BTreeMap<String, Arc<Vec<u8>>>,
    pub(super) stop: AtomicBool,
    pub(super) until: Option<Instant>,
    pub(super) clock: Clock,
    /// A device and its tier, in a part of the rounds.
    pub(super) gpu: Option<(Gpu, DeviceTier)>,
    /// Each thread's operation under way, and the verb, for whoever finds that it hangs.
    pub(super) progress: Vec<AtomicU64>,
}

/// Something that must not be.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// Which round, counted from 0.
    pub round: u64,
    /// Which thread, or `None` for what was found when all had ended.
    pub thread: Option<usize>,
    /// The number of the operation in that thread.
    pub operation: u64,
    /// What was done and what differed.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { seed, round, operation, what, .. } = self;
        match self.thread {
            Some(thread) => {
                write!(f, "seed {seed} round {round} thread {thread} operation {operation}: {what}")
            }
            None => write!(f, "seed {seed} round {round}, at its end: {what}"),
        }
    }
}

/// One thread's state.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    pub(super) common: &'a Common,
    pub(super) id: usize,
    pub(super) model: BTreeMap<String, Content>,
    pub(super) held: Vec<Held>,
    pub(super) schedule: Schedule,
    pub(super) operations: u64,
    /// Operations that failed as they may.
    pub(super) refused: u64,
    /// Of what was drawn.
    pub(super) drawn: u64,
    /// Of what came of it.
    pub(super) outcome: u64,
    /// Alone: whether the last operation met what goes wrong.
    pub(super) troubled: bool,
    numbers: Numbers,
}

impl<'a> Worker<'a> {
    /// Returns the thread of this number; `model` is what of its own there is already.
    pub(super) fn new(
        common: &'a Common,
        id: usize,
        numbers: Numbers,
        model: BTreeMap<String, Content>,
    ) -> Self {
        Worker {
            common,
            id,
            model,
            held: Vec::new(),
            schedule: common.store.schedule(),
            operations: 0,
            refused: 0,
            drawn: 0,
            outcome: 0,
            troubled: false,
            numbers,
        }
    }

    /// Runs all operations of the round.
    ///
    /// # Errors
    /// What was done and what differed.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let result = self.run_all();
        if result.is_err() {
            self.common.stop.store(true, Ordering::SeqCst);
        }
        if let Some(progress) = self.common.progress.get(self.id) {
            progress.store(0, Ordering::SeqCst);
        }
        result
    }

    fn run_all(&mut self) -> Result<(), String> {
        let over = |common: &Common| {
            common.stop.load(Ordering::SeqCst)
                || common.until.is_some_and(|until| Instant::now() >= until)
        };
        for number in 0..self.common.config.operations {
            if over(self.common) {
                break;
            }
            let operation = Operation::draw(&mut self.numbers);
            self.operations = number;
            self.drawn = operation.digest(self.drawn);
            if let Some(progress) = self.common.progress.get(self.id) {
                progress.store((number + 1) << 8 | operation.verb as u64, Ordering::SeqCst);
            }
            let failed = |what| format!("{:?} {operation:?}: {what}", operation.verb);
            self.trouble_alone(&operation).map_err(failed)?;
            // Time passes by operations alone; on a system's clock this does nothing.
            self.common.clock.advance(OPERATION_TIME);
            self.apply(&operation).map_err(failed)?;
            self.operations = number + 1;
        }
        self.held.iter().try_for_each(Held::check)
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), String> {
        let refused = self.refused;
        match operation.verb {
            Verb::Create => self.create(operation)?,
            Verb::Put => self.put(operation)?,
            Verb::Get => self.get(operation)?,
            Verb::GetInto => self.get_into(operation)?,
            Verb::GetRange => self.get_range(operation)?,
            Verb::Change => self.change(operation)?,
            Verb::HoldRead => self.hold_read(operation)?,
            Verb::DropHeld => self.drop_held(operation)?,
            Verb::Abandon => self.abandon(operation)?,
            Verb::WaitBriefly => self.wait_briefly(operation)?,
            Verb::Prefetch => self.prefetch(operation)?,
            Verb::Evict => self.evict(operation)?,
            Verb::Delete => self.delete(operation)?,
            Verb::Rename => self.rename(operation)?,
            Verb::Flush => self.flush()?,
            Verb::PutAsync => self.put_async(operation)?,
            Verb::GetAsync => self.get_async(operation)?,
            Verb::WriteRange => self.write_range(operation)?,
            Verb::HoldRange => self.hold_range(operation)?,
            Verb::PutMany => self.put_many(operation)?,
            Verb::GetMany => self.get_many(operation)?,
            Verb::EvictMany => self.evict_many(operation)?,
            Verb::DeleteMany => self.delete_many(operation)?,
            Verb::DeviceRead => self.device_read(operation)?,
            Verb::DeviceWrite => self.device_write(operation)?,
            Verb::DeviceAhead => self.device_ahead(operation)?,
            Verb::Hang => self.hang(operation)?,
            Verb::List => self.list()?,
            Verb::Pass => self.pass(operation)?,
            Verb::EndSchedule => self.schedule.end(),
            Verb::AddPath => self.add_path(operation)?,
            Verb::RemovePath => self.remove_path(operation)?,
            Verb::Room => self.room(operation),
            Verb::Trouble => self.trouble(operation),
        }
        self.outcome = mix(self.outcome ^ (self.refused - refused) ^ mix(operation.key));
        if let Some(held) = self.held.get(operation.b as usize % self.held.len().max(1)) {
            held.check()?;
        }
        Ok(())
    }

    /// Takes note of an error if it is one that may come here.
    ///
    /// # Errors
    /// The error, if it may not.
    pub(super) fn may_fail(&mut self, error: &Error) -> Result<(), String> {
        if let Error::Dropped { key, .. } = error
            && self.model.get(key).is_some_and(Content::is_reproducible)
        {
            // What is dropped when depends on what needed memory when, and does not repeat.
            return Ok(());
        }
        if !self.common.config.explains(error) {
            return Err(format!("an error that may not be: {error} ({error:?})"));
        }
        self.refused += 1;
        self.outcome = mix(self.outcome ^ error.kind() as u64);
        Ok(())
    }
}
