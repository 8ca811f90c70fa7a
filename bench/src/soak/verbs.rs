//! Verbs on whole objects: what each does to the store and to the model, and what must come of it.

use tensortier_storage::dtype::DType;
use tensortier_storage::error::{Error, ErrorKind};
use tensortier_storage::store::Store;

use super::content::{Content, contents};
use super::held::{Held, same};
use super::operation::Operation;
use super::worker::{Done, Worker};

const OWN_KEYS: u64 = 5;
const MOST_HELD: usize = 4;
/// Alone, memory must have room for more however they lie.
const MOST_HELD_ALONE: usize = 2;

impl Worker<'_> {
    pub(super) fn own_key(&self, n: u64) -> String {
        format!("own/{}/{}", self.id, n % OWN_KEYS)
    }

    /// Returns a key to read: mostly one of our own, also one of those that all share.
    pub(super) fn any_key(&self, operation: &Operation) -> String {
        if operation.seed.is_multiple_of(4) {
            let at = (operation.key % self.common.shared.len() as u64) as usize;
            return self.common.shared.keys().nth(at).cloned().unwrap_or_default();
        }
        self.own_key(operation.key)
    }

    /// Returns how long the object of a key must be, or that there must be none.
    pub(super) fn expected(&self, key: &str) -> Option<usize> {
        let shared = || self.common.shared.get(key).map(|bytes| bytes.len());
        self.model.get(key).map(Content::len).or_else(shared)
    }

    /// Compares what was read of an object from byte `at` on with the model.
    pub(super) fn verify(&mut self, key: &str, at: usize, got: &[u8]) -> Done {
        let differs = |differs| format!("{key} from {at} on: {differs}");
        if let Some(content) = self.model.get_mut(key) {
            return content.check(at, got).map_err(differs);
        }
        let bytes = self.common.shared.get(key).ok_or("got what is not there")?;
        let expect = bytes.get(at..at + got.len()).ok_or_else(|| format!("{key} is too long"))?;
        same(got, expect).map_err(differs)
    }

    /// Returns whether a new object is to be reproducible, and the store to make it with.
    pub(super) fn making(&self, operation: &Operation) -> (bool, Store) {
        let reproducible = self.common.config.caches && operation.seed >> 16 & 3 == 0;
        (reproducible, self.common.store.caching(reproducible))
    }

    /// Returns a length: empty, tiny, a few chunks, or more than the budget.
    pub(super) fn length(&self, operation: &Operation) -> u64 {
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

    pub(super) fn must_be_missing(&self, key: &str, error: &Error) -> Done {
        match error.kind() {
            ErrorKind::NotFound if self.expected(key).is_none() => Ok(()),
            _ => Err(format!("{key}: {error}")),
        }
    }

    pub(super) fn create(&mut self, operation: &Operation) -> Done {
        let (key, len) = (self.own_key(operation.key), self.length(operation));
        let known = self.model.contains_key(&key);
        let odd = 1 + operation.seed % self.common.config.chunk_bytes;
        let (reproducible, store) = self.making(operation);
        let made = if operation.seed.is_multiple_of(3) && len / odd < 64 {
            store.create_chunked(&key, DType::U8, &[len], odd)
        } else {
            store.create(&key, DType::U8, &[len])
        };
        match made {
            Ok(_) if known => Err(format!("{key} was made twice")),
            Ok(_) => {
                self.model.insert(key, Content::new(vec![0; len as usize], reproducible));
                Ok(())
            }
            Err(error) if known && error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(format!("{key}: {error}")),
        }
    }

    pub(super) fn put(&mut self, operation: &Operation) -> Done {
        let (key, len) = (self.own_key(operation.key), self.length(operation));
        let (reproducible, _) = self.making(operation);
        self.put_bytes(&key, contents(operation.seed, len), reproducible)?;
        // Alone, this is what meets paths that take no writes.
        if self.common.config.single { self.flush() } else { Ok(()) }
    }

    pub(super) fn put_bytes(&mut self, key: &str, bytes: Vec<u8>, reproducible: bool) -> Done {
        let store = self.common.store.caching(reproducible);
        match store.put(key, DType::U8, &[bytes.len() as u64], &bytes) {
            Ok(_) => {
                self.model.insert(key.to_owned(), Content::new(bytes, reproducible));
                Ok(())
            }
            Err(error) => self.may_fail(&error),
        }
    }

    pub(super) fn get(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let parts = match self.common.store.get(&key) {
            Ok(parts) => parts,
            Err(error) => return self.must_be_missing(&key, &error),
        };
        let (mut views, mut at) = (Vec::new(), 0);
        for (index, part) in parts.enumerate() {
            let part = match part {
                Ok(part) => part,
                Err(error) => return self.may_fail(&error),
            };
            self.verify(&key, at, &part)?;
            at += part.len();
            if self.common.config.single {
                views.clear();
            }
            // Some views are kept until all parts are there, some longer.
            if !operation.a.is_multiple_of(3) {
                views.push(Held::view(part, format!("part {index} of {key}")));
            }
        }
        if Some(at) != self.expected(&key) {
            return Err(format!("{key} has {at} bytes, not {:?}", self.expected(&key)));
        }
        if operation.a % 3 == 1 {
            self.keep(&key, views.pop());
        }
        Ok(())
    }

    pub(super) fn keep(&mut self, key: &str, held: Option<Held>) {
        let alone = self.common.config.single;
        // Alone, what is dropped when does not repeat, and so nothing may follow from it.
        let repeats = !(alone && self.model.get(key).is_some_and(Content::is_reproducible));
        if repeats && self.held.len() < if alone { MOST_HELD_ALONE } else { MOST_HELD } {
            self.held.extend(held);
        }
    }

    pub(super) fn get_into(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let mut into = vec![0xA5; self.expected(&key).unwrap_or(7)];
        let answer = self.common.store.get_into(&key, &mut into);
        self.got(&key, answer.map(|()| into))
    }

    /// Checks what was read of a whole object.
    pub(super) fn got(&mut self, key: &str, answer: Result<Vec<u8>, Error>) -> Done {
        match answer {
            Ok(_) if self.expected(key).is_none() => Err(format!("got {key}, which is not there")),
            Ok(bytes) => self.verify(key, 0, &bytes),
            Err(error) if self.expected(key).is_none() => self.must_be_missing(key, &error),
            Err(error) => self.may_fail(&error),
        }
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
            Err(error) => self.may_fail(&error),
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
        self.common.store.flush().or_else(|error| self.may_fail(&error))
    }

    pub(super) fn list(&mut self) -> Done {
        if self.common.store.contains(&format!("own/{}/none", self.id)) {
            return Err(String::from("there is an object that was never made"));
        }
        let listed = self.common.store.list(&format!("own/{}/", self.id));
        let listed: Vec<String> = listed.iter().map(ToString::to_string).collect();
        let known: Vec<&String> = self.model.keys().collect();
        if listed.iter().collect::<Vec<_>>() != known {
            return Err(format!("listed {listed:?} instead of {known:?}"));
        }
        for (key, content) in &self.model {
            let stat = self.common.store.stat(key).map_err(|error| format!("stat: {error}"))?;
            let whole = stat.bytes == content.len() as u64 && stat.host_bytes <= stat.bytes;
            let kept = content.is_reproducible() || stat.dropped_bytes == 0;
            if !whole || !kept || stat.reproducible && !content.is_reproducible() {
                return Err(format!("{key} has {} bytes: {stat:?}", content.len()));
            }
            // What is reproducible can be dropped at any moment.
            if !content.is_reproducible() && !self.common.store.contains(key) {
                return Err(format!("{key} is not there: {stat:?}"));
            }
        }
        Ok(())
    }
}
