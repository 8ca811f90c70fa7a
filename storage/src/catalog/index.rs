//! The map from keys to objects. Objects know their keys, so the map holds nothing but objects.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::id::Tier;
use crate::units::Bytes;

use super::{Key, Object};

/// The objects by key. What they take in memory is charged to the arena's budget.
#[derive(Debug)]
pub(crate) struct Catalog {
    arena: Arena,
    objects: HashTable<Arc<Object>>,
    hasher: RandomState,
    /// Objects that are being put and have no key yet; their first chunks may be on a path already.
    arriving: Vec<Arc<Object>>,
}

impl Catalog {
    pub(crate) fn new(arena: Arena) -> Self {
        let (objects, hasher) = (HashTable::new(), RandomState::new());
        Catalog { arena, objects, hasher, arriving: Vec::new() }
    }

    pub(crate) fn get(&self, key: &str) -> Result<Arc<Object>> {
        let found = self.objects.find(self.hash(key), |object| object.is_named(key));
        found.cloned().ok_or_else(|| not_found(key))
    }

    /// Adds an object that must be new.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::BudgetExhausted`] when its metadata is too much.
    pub(crate) fn insert(&mut self, object: Arc<Object>) -> Result<()> {
        if self.get(&object.key()).is_ok() {
            return Err(Error::AlreadyExists { key: object.key().to_string() });
        }
        self.charge(&object)?;
        self.replace(object);
        Ok(())
    }

    /// Puts an object that is charged under its key and returns the one it replaces.
    fn replace(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        match self.entry(&object.key()) {
            Entry::Occupied(mut occupied) => Some(std::mem::replace(occupied.get_mut(), object)),
            Entry::Vacant(vacant) => {
                vacant.insert(object);
                None
            }
        }
    }

    /// Takes an object's key away, if it has it still.
    pub(crate) fn remove(&mut self, object: &Arc<Object>) -> Result<()> {
        let key = object.key();
        match self.entry(&key) {
            Entry::Occupied(occupied) if Arc::ptr_eq(occupied.get(), object) => {
                occupied.remove();
            }
            _ => return Err(not_found(&key)),
        }
        self.arena.remove_metadata(object.memory_bytes());
        Ok(())
    }

    fn charge(&self, object: &Object) -> Result<()> {
        let bytes = object.memory_bytes();
        if self.arena.charge_metadata(bytes) {
            return Ok(());
        }
        let usage = self.arena.usage();
        Err(Error::BudgetExhausted {
            tier: Tier::Host,
            budget: Bytes(usage.budget),
            needed: Bytes(bytes),
            free: Bytes(usage.free()),
            largest_run: Bytes(usage.largest_run),
            holders: vec![format!(
                "the metadata of {} objects ({})",
                self.objects.len(),
                Bytes(usage.metadata)
            )],
        })
    }

    pub(crate) fn rename(&mut self, object: &Arc<Object>, to: Key) -> Result<()> {
        if self.get(&to).is_ok() {
            return Err(Error::AlreadyExists { key: to.to_string() });
        }
        self.remove(object)?;
        let old = object.set_key(&to);
        let renamed = self.insert(Arc::clone(object));
        if renamed.is_err() {
            // A longer key was too much; the old one was not.
            object.set_key(&old);
            self.insert(Arc::clone(object))?;
        }
        renamed
    }

    /// Takes note of an object that is being put, until [`Catalog::arrived`] or
    /// [`Catalog::turned_back`].
    ///
    /// # Errors
    /// [`Error::BudgetExhausted`] when its metadata is too much.
    pub(crate) fn arrives(&mut self, object: &Arc<Object>) -> Result<()> {
        self.charge(object)?;
        self.arriving.push(Arc::clone(object));
        Ok(())
    }

    /// An object was put; returns the one it replaces.
    pub(crate) fn arrived(&mut self, object: &Arc<Object>) -> Option<Arc<Object>> {
        self.arriving.retain(|other| !Arc::ptr_eq(other, object));
        let old = self.replace(Arc::clone(object));
        if let Some(old) = &old {
            self.arena.remove_metadata(old.memory_bytes());
        }
        old
    }

    /// An object will not be put.
    pub(crate) fn turned_back(&mut self, object: &Arc<Object>) {
        self.arriving.retain(|other| !Arc::ptr_eq(other, object));
        self.arena.remove_metadata(object.memory_bytes());
    }

    /// Returns every object that may have bytes on a path, those being put too.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.iter().chain(&self.arriving)
    }

    /// Returns the keys that begin with `prefix`, in order; looks at all of them.
    pub(crate) fn list(&self, prefix: &str) -> Vec<Key> {
        let keys = self.objects.iter().map(|object| object.key());
        let mut keys: Vec<_> = keys.filter(|key| key.starts_with(prefix)).collect();
        keys.sort_unstable();
        keys
    }

    pub(crate) fn drain(&mut self) -> Vec<Arc<Object>> {
        std::mem::take(&mut self.objects).into_iter().collect()
    }

    fn hash(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }

    fn entry(&mut self, key: &str) -> Entry<'_, Arc<Object>> {
        let (hash, hasher) = (self.hash(key), &self.hasher);
        let rehash = |object: &Arc<Object>| hasher.hash_one(&*object.key());
        self.objects.entry(hash, |object| object.is_named(key), rehash)
    }
}

fn not_found(key: &str) -> Error {
    Error::NotFound {
        key: Key::new(key).map_or_else(|_| String::from("(a key over 64 KiB)"), |k| k.to_string()),
    }
}
