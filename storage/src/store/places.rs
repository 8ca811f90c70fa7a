//! Changing the paths of a running store: adding one, emptying one, and adopting a tensor file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::catalog::{ChunkRef, DiskCopy, Key, Object, Piece};
use crate::clock::Clock;
use crate::codec::Form;
use crate::error::{Error, Result};
use crate::id::{ObjectId, PathId, Version};
use crate::io::EngineChoice;
use crate::mover::Msg;
use crate::path::{FilePathStore, Member, Path, PathStore};
use crate::residency::Mode;
use crate::source::{AdoptedFile, TensorFile};
use crate::sync::Ordering;

use super::{ObjectRef, Store};

/// How often a path is looked at again for chunks that were on their way to it when it was retired.
const DRAIN_LOOKS: usize = 8;

/// How long to wait before a path without chunks is looked at again for space not yet freed.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

impl Store {
    /// Adds a directory as a path; new bytes go there from now on, by its share.
    ///
    /// # Errors
    /// As opening a store with it; nothing changes then.
    pub fn add_path(&self, path: &Path, engine: EngineChoice) -> Result<PathId> {
        self.check_open()?;
        self.refuse_known(&path.dir)?;
        let members = self.0.handle.shared.paths.all();
        let taking = members.iter().filter(|member| member.takes_writes);
        let others = taking.map(|member| member.store.capabilities().device);
        let store = FilePathStore::open_beside(path, engine, Clock::system(), others)?;
        self.add_path_store(Arc::new(store))
    }

    /// Adds a path of the caller's own making.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn add_path_store(&self, store: Arc<dyn PathStore>) -> Result<PathId> {
        self.check_open()?;
        self.ask(|reply| Msg::AddPath { store, takes_writes: true, reply }).wait()
    }

    fn refuse_known(&self, dir: &std::path::Path) -> Result<()> {
        let canonical =
            |dir: &std::path::Path| dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let members = self.0.handle.shared.paths.all();
        let twice =
            |m: &Member| m.takes_writes && canonical(&m.store.capabilities().dir) == canonical(dir);
        if members.iter().any(twice) {
            return Err(Error::Config {
                what: format!("path {}", dir.display()),
                why: String::from("is one of the store's already"),
            });
        }
        Ok(())
    }

    /// Empties a path while the store runs: nothing new goes there, what lies there is moved to the
    /// others through memory, and then the path is closed and what the store made on it removed.
    /// Blocks; other work goes on meanwhile.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for an id that is not of a path that takes writes, [`Error::Config`] for
    /// the last such path, [`Error::NoSpace`] when the others cannot take it all, and the errors of a
    /// lease: the path then stays in service, as with [`Error::Timeout`] when transfers from or to it do
    /// not end within `grace`. [`Error::Timeout`] also when the emptied path does not close within it.
    pub fn remove_path(&self, path: PathId, grace: Duration) -> Result<()> {
        self.check_open()?;
        let members = self.0.handle.shared.paths.all();
        let taking = members.iter().filter(|member| member.takes_writes);
        let Some(member) = taking.clone().find(|member| member.id == path) else {
            return Err(Error::OutOfRange {
                key: format!("path number {}", path.0),
                why: String::from("is not a path that takes writes"),
            });
        };
        if taking.count() == 1 {
            return Err(Error::Config {
                what: format!("removing {}", member.store.capabilities().dir.display()),
                why: String::from("it is the last path; add another first"),
            });
        }
        self.let_path_take_writes(path, false)?;
        if let Err(error) = self.empty_path(member, grace) {
            self.let_path_take_writes(path, true)?;
            return Err(error);
        }
        member.store.close(grace).map_err(|error| Error::Timeout {
            what: format!("closing a path: {error}"),
            after: grace,
        })
    }

    fn let_path_take_writes(&self, path: PathId, takes_writes: bool) -> Result<()> {
        self.ask(|reply| Msg::TakeWrites { path, takes_writes, reply }).wait()
    }

    /// Moves everything off a path that takes no writes any more.
    fn empty_path(&self, member: &Member, grace: Duration) -> Result<()> {
        let removing = || format!("removing {}", member.store.capabilities().dir.display());
        let (begin, mut looks) = (Instant::now(), 0);
        loop {
            let left = self.chunks_on(member.id);
            // Space that no chunk has belongs to a write or a read whose end is still to be told.
            if left.is_empty() {
                if member.store.counters().used_bytes == 0 {
                    return Ok(());
                }
                if begin.elapsed() >= grace {
                    return Err(Error::Timeout { what: removing(), after: grace });
                }
                std::thread::sleep(DRAIN_PAUSE);
            } else if looks == DRAIN_LOOKS {
                let why = "chunks under exclusive leases stayed on it; end them and try again";
                return Err(Error::Config { what: removing(), why: String::from(why) });
            } else {
                looks += 1;
            }
            for chunk in left {
                self.move_off(&chunk, member.id)?;
            }
            self.flush()?;
        }
    }

    fn chunks_on(&self, path: PathId) -> Vec<ChunkRef> {
        let on_it =
            |chunk: &ChunkRef| chunk.cell.lock().disk.as_ref().is_some_and(|disk| disk.is_on(path));
        let objects: Vec<_> = self.0.catalog.read().all().cloned().collect();
        objects.iter().flat_map(Object::chunks).filter(on_it).collect()
    }

    /// Brings a chunk into memory and has it written again, elsewhere.
    fn move_off(&self, chunk: &ChunkRef, path: PathId) -> Result<()> {
        let hold = match self.0.handle.lease(chunk.name(), Mode::Read).wait() {
            // It was deleted meanwhile: nothing is left to move.
            Err(Error::NotFound { .. }) => return Ok(()),
            other => other?,
        };
        let mut cell = chunk.cell.lock();
        if cell.disk.as_ref().is_some_and(|disk| disk.is_on(path)) {
            cell.residency.rewrite();
        }
        drop(cell);
        drop(hold);
        Ok(())
    }

    /// Makes the tensors of a file objects of this store, under `prefix` + their names, at once: they
    /// are read from the file when they are asked for, and written to the store's own paths only when
    /// they are changed. The file must not be changed while the store lives: its bytes have no
    /// checksums of ours.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] when a name is taken, [`Error::KeyTooLong`], [`Error::System`],
    /// [`Error::Closed`]; nothing is adopted then.
    pub fn adopt(&self, file: TensorFile, prefix: &str) -> Result<Vec<ObjectRef>> {
        self.check_open()?;
        let adopted = Arc::new(AdoptedFile::new(file)?);
        let store: Arc<dyn PathStore> = adopted.clone();
        let added = self.ask(|reply| Msg::AddPath { store, takes_writes: false, reply });
        let path = added.wait()?;
        let mut objects = Vec::new();
        for entry in adopted.entries() {
            let key = Key::new(&format!("{prefix}{}", entry.name))?;
            let id = ObjectId(self.0.next_object.fetch_add(1, Ordering::Relaxed));
            let object = Object::new(id, key, entry.dtype, &entry.shape, self.0.chunk_bytes)?;
            let object = Arc::new(object);
            for chunk in object.chunks() {
                let offset = entry.range.start + u64::from(chunk.index()) * object.chunk_bytes();
                let mut cell = chunk.cell.lock();
                cell.residency.stored_already(Version(1));
                let piece = Piece::new(path, AdoptedFile::extent(offset, chunk.bytes()));
                cell.disk = Some(DiskCopy::new(vec![piece], Form::default()));
            }
            objects.push(object);
        }
        let mut catalog = self.0.catalog.write();
        if let Some(object) = objects.iter().find(|object| catalog.get(&object.key()).is_ok()) {
            return Err(Error::AlreadyExists { key: object.key().to_string() });
        }
        for object in &objects {
            catalog.insert(Arc::clone(object))?;
        }
        Ok(objects.into_iter().map(ObjectRef).collect())
    }
}
