//! The map from keys to objects. Objects know their keys, so the map holds nothing but objects.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::error::{Error, Result};

use super::{Key, Object};

/// The objects by key.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    objects: HashTable<Arc<Object>>,
    hasher: RandomState,
    /// Objects that are being put and have no key yet; their first chunks may be on a path already.
    arriving: Vec<Arc<Object>>,
}

impl Catalog {
    pub(crate) fn get(&self, key: &str) -> Result<Arc<Object>> {
        let found = self.objects.find(self.hash(key), |object| object.is_named(key));
        found.cloned().ok_or_else(|| not_found(key))
    }

    /// Adds an object that must be new.
    pub(crate) fn insert(&mut self, object: Arc<Object>) -> Result<()> {
        match self.entry(&object.key()) {
            Entry::Occupied(_) => Err(Error::AlreadyExists { key: object.key().to_string() }),
            Entry::Vacant(vacant) => {
                vacant.insert(object);
                Ok(())
            }
        }
    }

    /// Puts an object under its key and returns the one it replaces.
    pub(crate) fn replace(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
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
                Ok(())
            }
            _ => Err(not_found(&key)),
        }
    }

    pub(crate) fn rename(&mut self, object: &Arc<Object>, to: Key) -> Result<()> {
        if self.get(&to).is_ok() {
            return Err(Error::AlreadyExists { key: to.to_string() });
        }
        self.remove(object)?;
        object.set_key(to);
        self.insert(Arc::clone(object))
    }

    /// Takes note of an object that is being put, until [`Catalog::arrived`].
    pub(crate) fn arrives(&mut self, object: &Arc<Object>) {
        self.arriving.push(Arc::clone(object));
    }

    /// An object was put, or will not be.
    pub(crate) fn arrived(&mut self, object: &Arc<Object>) {
        self.arriving.retain(|other| !Arc::ptr_eq(other, object));
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
