//! What each verb does to the store and to the model, and what must come of it.

use std::ops::Range;
use std::time::Duration;

use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::store::ObjectRef;

use super::held::{Held, same};
use super::numbers::Numbers;
use super::operation::Operation;
use super::places::Place;
use super::worker::{PATIENCE, Worker};

const OWN_KEYS: u64 = 5;
const MOST_PATHS: usize = 4;
const MOST_HELD: usize = 4;
/// For what our own leases may keep from coming.
const BRIEFLY: Duration = Duration::from_millis(5);

type Done = Result<(), String>;

impl Worker<'_> {
    fn own_key(&self, n: u64) -> String {
        format!("own/{}/{}", self.id, n % OWN_KEYS)
    }

    /// Returns a key to read: mostly one of our own, also one of those that all share.
    fn any_key(&self, operation: &Operation) -> String {
        if operation.seed.is_multiple_of(4) {
            let at = (operation.key % self.common.shared.len() as u64) as usize;
            return self.common.shared.keys().nth(at).cloned().unwrap_or_default();
        }
        self.own_key(operation.key)
    }

    /// Returns what the object of a key must hold.
    fn expected(&self, key: &str) -> Option<&[u8]> {
        let shared = || self.common.shared.get(key).map(|bytes| &bytes[..]);
        self.model.get(key).map(|bytes| &bytes[..]).or_else(shared)
    }

    /// Returns the object of a key that must exist.
    fn object(&self, key: &str) -> Result<ObjectRef, String> {
        self.common.store.object(key).map_err(|error| format!("object {key}: {error}"))
    }

    /// Returns a length: empty, tiny, a few chunks, or more than the budget.
    fn length(&self, operation: &Operation) -> u64 {
        let (chunk, longest) = (self.common.config.chunk_bytes, self.common.config.longest);
        match operation.a % 16 {
            0 => 0,
            1 | 2 => operation.b % 4097,
            3..6 => chunk * (1 + operation.b % 3),
            6..14 => operation.b % (4 * chunk).min(longest),
            _ => operation.b % (longest + 1),
        }
        .min(longest)
    }

    fn must_be_missing(&self, key: &str, error: &Error) -> Done {
        match error.kind() {
            ErrorKind::NotFound if self.expected(key).is_none() => Ok(()),
            _ => Err(format!("{key}: {error}")),
        }
    }

    pub(super) fn create(&mut self, operation: &Operation) -> Done {
        let (key, len) = (self.own_key(operation.key), self.length(operation));
        let known = self.model.contains_key(&key);
        let odd = 1 + operation.seed % self.common.config.chunk_bytes;
        let store = &self.common.store;
        let made = if operation.seed.is_multiple_of(3) && len / odd < 64 {
            store.create_chunked(&key, DType::U8, &[len], odd)
        } else {
            store.create(&key, DType::U8, &[len])
        };
        match made {
            Ok(_) if known => Err(format!("{key} was made twice")),
            Ok(_) => {
                self.model.insert(key, vec![0; len as usize]);
                Ok(())
            }
            Err(error) if known && error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(format!("{key}: {error}")),
        }
    }

    pub(super) fn put(&mut self, operation: &Operation) -> Done {
        let (key, len) = (self.own_key(operation.key), self.length(operation));
        let mut bytes = vec![0; len as usize];
        Numbers::new(operation.seed).fill(&mut bytes);
        match self.common.store.put(&key, DType::U8, &[len], &bytes) {
            Ok(_) => {
                self.model.insert(key, bytes);
                Ok(())
            }
            Err(error) => self.may_fail(&error, false),
        }
    }

    pub(super) fn get(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let parts = match self.common.store.get(&key) {
            Ok(parts) => parts,
            Err(error) => return self.must_be_missing(&key, &error),
        };
        let (mut views, mut at) = (Vec::new(), 0);
        let expect = self.expected(&key).ok_or("got what is not there")?;
        for (index, part) in parts.enumerate() {
            self.settle_alone();
            let part = match part {
                Ok(part) => part,
                Err(error) => return self.may_fail(&error, !views.is_empty()),
            };
            let end = at + part.len();
            let place = expect.get(at..end).ok_or_else(|| format!("{key} is too long"))?;
            same(&part, place).map_err(|differs| format!("{key} part {index}: {differs}"))?;
            // Some views are kept until all parts are there, some longer.
            if !operation.a.is_multiple_of(3) {
                views.push(Held::view(part, place, format!("part {index} of {key}")));
            }
            at = end;
        }
        if at != expect.len() {
            return Err(format!("{key} has {at} bytes, not {}", expect.len()));
        }
        if operation.a % 3 == 1 {
            self.keep(views.pop());
        }
        Ok(())
    }

    fn keep(&mut self, held: Option<Held>) {
        if self.held.len() < MOST_HELD {
            self.held.extend(held);
        }
    }

    pub(super) fn get_into(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let mut into = vec![0xA5; self.expected(&key).map_or(7, <[u8]>::len)];
        match self.common.store.get_into(&key, &mut into) {
            Ok(()) => {
                let expect = self.expected(&key).ok_or("got what is not there")?;
                same(&into, expect).map_err(|differs| format!("{key}: {differs}"))
            }
            Err(error) if self.expected(&key).is_none() => self.must_be_missing(&key, &error),
            Err(error) => self.may_fail(&error, false),
        }
    }

    pub(super) fn get_range(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let Some(len) = self.expected(&key).map(|bytes| bytes.len() as u64) else { return Ok(()) };
        let from = operation.a % (len + 1);
        let to = from + operation.b % (len - from + 1);
        let mut into = vec![0xA5; (to - from) as usize];
        match self.common.store.get_range_into(&key, from..to, &mut into) {
            Ok(()) => {
                let expect = self.expected(&key).unwrap_or_default();
                same(&into, &expect[from as usize..to as usize])
                    .map_err(|differs| format!("{key} {from}..{to}: {differs}"))
            }
            Err(error) => self.may_fail(&error, false),
        }
    }

    /// Returns an object and a chunk of it with its bytes in the object, if there is one.
    fn chunk(&self, key: &str, n: u64) -> Result<Option<(ObjectRef, u32, Range<usize>)>, String> {
        let Some(expect) = self.expected(key) else { return Ok(None) };
        let object = self.object(key)?;
        let Some(index) = n.checked_rem(u64::from(object.chunks())) else { return Ok(None) };
        let size = object.stat().chunk_bytes as usize;
        let start = index as usize * size;
        Ok(Some((object, index as u32, start..(start + size).min(expect.len()))))
    }

    pub(super) fn change(&mut self, operation: &Operation) -> Done {
        let key = self.own_key(operation.key);
        self.change_chunk(&key, operation.a, operation)
    }

    fn change_chunk(&mut self, key: &str, n: u64, operation: &Operation) -> Done {
        let Some((object, index, range)) = self.chunk(key, n)? else { return Ok(()) };
        // A shared lease of our own makes an exclusive one wait for ourselves.
        let limit = match self.held.is_empty() {
            true => PATIENCE,
            false if self.common.single => 10 * BRIEFLY,
            false => BRIEFLY,
        };
        let ticket = self.common.store.lease_write(&object, index);
        let mut lease = match ticket.wait_timeout(limit) {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return self.may_fail(&error, false),
            Err(_) if self.held.is_empty() => return Err(format!("{key}: never granted")),
            Err(_) => return Ok(()),
        };
        let bytes = &mut self.model.get_mut(key).ok_or("no model")?[range];
        same(&lease, bytes).map_err(|differs| format!("{key} chunk {index}: {differs}"))?;
        let mut numbers = Numbers::new(operation.seed ^ u64::from(index));
        match operation.b % 4 {
            0 => {}
            1 => {
                numbers.fill(&mut lease);
                bytes.copy_from_slice(&lease);
            }
            _ => {
                let from = numbers.below(bytes.len() as u64) as usize;
                let to = from + 1 + numbers.below((bytes.len() - from).min(5000) as u64) as usize;
                let to = to.min(bytes.len());
                numbers.fill(&mut lease[from..to]);
                bytes[from..to].copy_from_slice(&lease[from..to]);
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
            Ok(Err(error)) => return self.may_fail(&error, false),
            Err(_) => return Err(format!("{key}: a shared lease was never granted")),
        };
        let expect = &self.expected(&key).unwrap_or_default()[range];
        let held = Held::lease(lease, expect, format!("chunk {index} of {key}"));
        held.check()?;
        self.keep(Some(held));
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
        self.settle_alone();
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
        let alone = self.common.single;
        let limit = if alone { PATIENCE } else { Duration::from_micros(operation.b % 300) };
        let mut ticket = store.lease_read(&object, index);
        for _ in 0..1 + operation.seed % 3 {
            match ticket.wait_timeout(limit) {
                Ok(Ok(lease)) => {
                    let expect = &self.expected(&key).unwrap_or_default()[range];
                    return same(&lease, expect).map_err(|differs| format!("{key}: {differs}"));
                }
                Ok(Err(error)) => return self.may_fail(&error, false),
                Err(again) => ticket = again,
            }
        }
        Ok(())
    }

    pub(super) fn prefetch(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        if self.expected(&key).is_some() {
            let prefetch = self.common.store.prefetch(&key);
            return prefetch.map_err(|error| format!("prefetching {key}: {error}"));
        }
        Ok(())
    }

    pub(super) fn evict(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        match self.common.store.evict(&key) {
            Ok(()) if self.expected(&key).is_some() => Ok(()),
            Ok(()) => Err(format!("{key} was evicted and is not there")),
            Err(error) if self.expected(&key).is_none() => self.must_be_missing(&key, &error),
            Err(error) => self.may_fail(&error, false),
        }
    }

    pub(super) fn delete(&mut self, operation: &Operation) -> Done {
        let key = self.own_key(operation.key);
        match (self.common.store.delete(&key), self.model.remove(&key)) {
            (Ok(()), Some(_)) => Ok(()),
            (Err(error), None) => self.must_be_missing(&key, &error),
            (answer, model) => {
                let known = model.is_some();
                Err(format!("deleting {key}: {answer:?}, and it was there: {known}"))
            }
        }
    }

    pub(super) fn rename(&mut self, operation: &Operation) -> Done {
        let (from, to) = (self.own_key(operation.key), self.own_key(operation.a));
        let legal = self.model.contains_key(&from) && !self.model.contains_key(&to);
        let answer = self.common.store.rename(&from, &to);
        if answer.is_ok() != legal {
            return Err(format!("renaming {from} to {to}: {answer:?}, legal: {legal}"));
        }
        if legal && let Some(bytes) = self.model.remove(&from) {
            self.model.insert(to, bytes);
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Done {
        self.common.store.flush().or_else(|error| self.may_fail(&error, false))
    }

    pub(super) fn list(&mut self) -> Done {
        let listed = self.common.store.list(&format!("own/{}/", self.id));
        let listed: Vec<String> = listed.iter().map(ToString::to_string).collect();
        let known: Vec<&String> = self.model.keys().collect();
        if listed.iter().collect::<Vec<_>>() != known {
            return Err(format!("listed {listed:?} instead of {known:?}"));
        }
        for (key, bytes) in &self.model {
            let stat = self.common.store.stat(key).map_err(|error| format!("stat: {error}"))?;
            if stat.bytes != bytes.len() as u64 || stat.host_bytes > stat.bytes {
                return Err(format!("{key} has {} bytes: {stat:?}", bytes.len()));
            }
        }
        Ok(())
    }

    /// Declares a pass over all of our objects and makes it, or a part of it.
    pub(super) fn pass(&mut self, operation: &Operation) -> Done {
        for held in self.held.drain(..) {
            held.check()?;
        }
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
            self.settle_alone();
            self.change_chunk(key, chunk, operation)?;
        }
        Ok(())
    }

    pub(super) fn add_path(&mut self, operation: &Operation) -> Done {
        let active = self.common.places.active().len();
        if self.id != 0 || !self.common.config.paths_move || active >= MOST_PATHS {
            return Ok(());
        }
        let config = self.common.config.draw_path(&mut Numbers::new(operation.seed));
        let failed = |error: Error| format!("adding a path: {error}");
        let place = Place::open(&self.common.base, &config).map_err(failed)?;
        place.trouble(true);
        let id = self.common.store.add_path_store(place.store.clone()).map_err(failed)?;
        if usize::from(id.0) != self.common.places.all().len() {
            return Err(format!("a path got the number {id:?}"));
        }
        self.common.places.add(place);
        Ok(())
    }

    pub(super) fn remove_path(&mut self, operation: &Operation) -> Done {
        let active = self.common.places.active();
        if self.id != 0 || !self.common.config.paths_move || active.len() < 2 {
            return Ok(());
        }
        let (id, place) = &active[(operation.a % active.len() as u64) as usize];
        match self.common.store.remove_path(*id, PATIENCE) {
            Ok(()) => {
                self.common.places.removed(*id);
                let used = place.store.counters().used_bytes;
                if used > 0 { Err(format!("{used} bytes stay on a removed path")) } else { Ok(()) }
            }
            Err(Error::Config { why, .. }) if why.contains("exclusive") => Ok(()),
            Err(error) => self.may_fail(&error, false),
        }
    }

    /// Takes the room of a path away, or gives it back.
    pub(super) fn room(&mut self, operation: &Operation) {
        let config = &self.common.config;
        if self.id == 0 && config.writes_fail && !self.common.single {
            let room = (operation.a.is_multiple_of(2)).then_some(config.budget / 4 + 1);
            for (_, place) in self.common.places.active() {
                place.set_room(room);
            }
        }
    }

    /// Ends what goes wrong on the paths for a while, or begins it again.
    pub(super) fn trouble(&mut self, operation: &Operation) {
        if self.id == 0 && !self.common.single {
            for (_, place) in self.common.places.active() {
                place.trouble(!operation.a.is_multiple_of(4));
            }
        }
    }
}
