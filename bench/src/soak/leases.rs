//! Verbs on single chunks: leases that are changed, kept, given up or waited for briefly, and declared
//! passes.

use std::ops::Range;
use std::time::Duration;

use tensortier_storage::store::ObjectRef;

use super::content::fill;
use super::held::Held;
use super::numbers::Numbers;
use super::operation::Operation;
use super::worker::{Done, PATIENCE, Worker};

/// For what our own leases may keep from coming.
const BRIEFLY: Duration = Duration::from_millis(5);

impl Worker<'_> {
    /// Returns an object and a chunk of it with its bytes in the object, if there is one.
    pub(super) fn chunk(
        &self,
        key: &str,
        n: u64,
    ) -> Result<Option<(ObjectRef, u32, Range<usize>)>, String> {
        let Some(len) = self.expected(key) else { return Ok(None) };
        let object = self.object(key)?;
        let Some(index) = n.checked_rem(u64::from(object.chunks())) else { return Ok(None) };
        let size = object.stat().chunk_bytes as usize;
        let start = index as usize * size;
        Ok(Some((object, index as u32, start..(start + size).min(len))))
    }

    /// Returns the object of a key that must exist.
    pub(super) fn object(&self, key: &str) -> Result<ObjectRef, String> {
        self.common.store.object(key).map_err(|error| format!("object {key}: {error}"))
    }

    /// Returns how long an exclusive lease is waited for: a shared lease of our own makes it wait for
    /// ourselves.
    pub(super) fn exclusive_limit(&mut self) -> Result<Duration, String> {
        if self.common.config.single {
            // How far one gets in a short time does not repeat.
            self.let_go()?;
        }
        Ok(if self.held.is_empty() { PATIENCE } else { BRIEFLY })
    }

    pub(super) fn change(&mut self, operation: &Operation) -> Done {
        let key = self.own_key(operation.key);
        self.change_chunk(&key, operation.a, operation)
    }

    fn change_chunk(&mut self, key: &str, n: u64, operation: &Operation) -> Done {
        let limit = self.exclusive_limit()?;
        let Some((object, index, range)) = self.chunk(key, n)? else { return Ok(()) };
        let ticket = self.common.store.lease_write(&object, index);
        let mut lease = match ticket.wait_timeout(limit) {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return self.may_fail(&error),
            Err(_) if limit == PATIENCE => return Err(format!("{key}: never granted")),
            Err(_) => return Ok(()),
        };
        self.verify(key, range.start, &lease)?;
        let content = self.model.get_mut(key).ok_or("no model")?;
        let seed = operation.seed ^ u64::from(index);
        let mut numbers = Numbers::new(seed);
        match operation.b % 5 {
            0 => {}
            1 => {
                // Bytes that are written as they were.
                lease.fill(0xC3);
                lease.copy_from_slice(content.part(&range));
                lease.unchanged();
            }
            2 => {
                fill(seed, &mut lease);
                content.write(range.start, &lease);
            }
            _ => {
                let from = numbers.below(lease.len() as u64) as usize;
                let most = (lease.len() - from).min(5000) as u64;
                let to = from + 1 + numbers.below(most) as usize;
                let to = to.min(lease.len());
                numbers.fill(&mut lease[from..to]);
                content.write(range.start + from, &lease[from..to]);
                if operation.b.is_multiple_of(2) {
                    lease.changed(from..to).map_err(|error| format!("{key}: {error}"))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn hold_read(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let Some((object, index, range)) = self.chunk(&key, operation.a)? else { return Ok(()) };
        let ticket = self.common.store.lease_read(&object, index);
        let lease = match ticket.wait_timeout(PATIENCE) {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return self.may_fail(&error),
            Err(_) => return Err(format!("{key}: a shared lease was never granted")),
        };
        self.verify(&key, range.start, &lease)?;
        let held = Held::lease(lease, format!("chunk {index} of {key}"));
        self.keep(&key, Some(held));
        Ok(())
    }

    pub(super) fn drop_held(&mut self, operation: &Operation) -> Done {
        if !self.held.is_empty() {
            let at = (operation.a % self.held.len() as u64) as usize;
            self.held.swap_remove(at).check()?;
        }
        Ok(())
    }

    /// Asks for leases and drops the tickets, at once or after a while.
    pub(super) fn abandon(&mut self, operation: &Operation) -> Done {
        let (key, store) = (self.own_key(operation.key), &self.common.store);
        let Some((object, index, _)) = self.chunk(&key, operation.a)? else { return Ok(()) };
        let reading = store.lease_read(&object, index);
        drop(store.lease_write(&object, (operation.b % u64::from(object.chunks())) as u32));
        if operation.b.is_multiple_of(2) {
            std::thread::yield_now();
        }
        drop(reading);
        Ok(())
    }

    pub(super) fn wait_briefly(&mut self, operation: &Operation) -> Done {
        let (key, store) = (self.any_key(operation), &self.common.store);
        let Some((object, index, range)) = self.chunk(&key, operation.a)? else { return Ok(()) };
        let alone = self.common.config.single;
        let limit = if alone { PATIENCE } else { Duration::from_micros(operation.b % 300) };
        let mut ticket = store.lease_read(&object, index);
        for _ in 0..1 + operation.seed % 3 {
            match ticket.wait_timeout(limit) {
                Ok(Ok(lease)) => return self.verify(&key, range.start, &lease),
                Ok(Err(error)) => return self.may_fail(&error),
                Err(again) => ticket = again,
            }
        }
        Ok(())
    }

    /// Declares a pass over all of our objects and makes it, or a part of it.
    pub(super) fn pass(&mut self, operation: &Operation) -> Done {
        self.let_go()?;
        let keys: Vec<String> = self.model.keys().cloned().collect();
        let objects = keys.iter().map(|key| self.object(key)).collect::<Result<Vec<_>, _>>()?;
        let reserve = self.common.config.chunk_bytes * (operation.a % 4);
        let next = if operation.a.is_multiple_of(2) { &objects[..] } else { &[] };
        let declared = self.schedule.declare(&objects, next, reserve);
        declared.map_err(|error| format!("declare: {error}"))?;
        let chunks = keys.iter().zip(&objects).flat_map(|(key, object)| {
            (0..object.chunks()).map(move |chunk| (key, u64::from(chunk)))
        });
        let stops_after = 1 + operation.b as usize % 64;
        for (key, chunk) in chunks.take(stops_after) {
            self.change_chunk(key, chunk, operation)?;
        }
        Ok(())
    }
}
