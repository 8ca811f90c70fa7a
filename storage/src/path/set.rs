//! The paths of a store: a list that only grows, so that a path's id stays good as long as the store
//! lives, also after the path took its last write.

use std::sync::Arc;

use super::PathStore;
use crate::id::PathId;
use crate::sync::RwLock;

/// A path of a store.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) id: PathId,
    pub(crate) store: Arc<dyn PathStore>,
    /// Whether new bytes may go there.
    pub(crate) takes_writes: bool,
}

/// All paths of a store, in the order in which they were added.
#[derive(Debug)]
pub(crate) struct PathSet(RwLock<Vec<Member>>);

impl PathSet {
    /// Returns a set of paths that all take writes.
    pub(crate) fn new(stores: Vec<Arc<dyn PathStore>>) -> Self {
        let set = PathSet(RwLock::new(Vec::new()));
        for store in stores {
            set.add(store, true);
        }
        set
    }

    /// Adds a path and returns its id.
    pub(crate) fn add(&self, store: Arc<dyn PathStore>, takes_writes: bool) -> PathId {
        let mut members = self.0.write();
        let id = PathId(members.len() as u16);
        members.push(Member { id, store, takes_writes });
        id
    }

    /// Says whether new bytes may go to a path.
    pub(crate) fn let_take_writes(&self, id: PathId, takes_writes: bool) {
        if let Some(member) = self.0.write().get_mut(id.index()) {
            member.takes_writes = takes_writes;
        }
    }

    /// Returns the path of an id that this set gave out.
    pub(crate) fn get(&self, id: PathId) -> Arc<dyn PathStore> {
        Arc::clone(&self.0.read()[id.index()].store)
    }

    /// Returns all paths, those included that take no writes.
    pub(crate) fn all(&self) -> Vec<Member> {
        self.0.read().clone()
    }

    /// Returns how many paths there are.
    pub(crate) fn len(&self) -> usize {
        self.0.read().len()
    }
}
