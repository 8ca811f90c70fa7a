//! Paths that do not answer: what they have is set apart until it is answered, those who wait for it
//! are told, and what was to be written goes elsewhere from the same frame.

use crate::arena::granules_up;
use crate::catalog::{ChunkRef, FrameSlot};
use crate::error::{Errno, Error};
use crate::id::PathId;
use crate::path::{Condition, Member};
use crate::sync::Ordering;
use crate::units::Bytes;

use super::state::Mover;
use super::transfers::{Drain, Hung, Load, Part, TransferId};
use super::want::{Demand, Want};
use super::{Loading, Msg};

impl Mover {
    /// Hears of a path from now on.
    pub(super) fn watch(&mut self, id: PathId) {
        // The messages alone: whoever has the path must not be kept by it.
        let inbox = self.handle.inbox.clone();
        let store = self.path(id);
        store.watch(Box::new(move |event| {
            let _ = inbox.send(Msg::Path { path: id, event });
        }));
        self.health[id.index()].hung = matches!(store.condition(), Condition::Hung { .. });
    }

    /// A path hangs: nothing that it has is waited for any more.
    pub(super) fn path_hung(&mut self, path: PathId) {
        let store = self.path(path);
        tracing::warn!(path = %store.capabilities().dir.display(), "a path does not answer");
        // It may answer again by now; what it has is as good as any to be tried again then.
        self.health[path.index()].hung = matches!(store.condition(), Condition::Hung { .. });
        for (load, parts) in self.transfers.take_loads(path) {
            self.read_hung(load, parts, path);
        }
        for (drain, parts) in self.transfers.take_drains(path) {
            self.write_hung(drain, parts, path);
        }
        self.refuse_demands();
        self.count_quarantine();
    }

    /// A path answers again.
    pub(super) fn path_answers(&mut self, path: PathId) {
        let store = self.path(path);
        tracing::info!(path = %store.capabilities().dir.display(), "a path answers again");
        self.health[path.index()].hung = matches!(store.condition(), Condition::Hung { .. });
        self.no_space = None;
    }

    /// A path hangs that has a part of a chunk to read: all its parts are set apart.
    fn read_hung(&mut self, load: Load, parts: Vec<(TransferId, Part)>, hung: PathId) {
        let chunk = load.chunk;
        let slot = chunk.cell.lock().take_frame(FrameSlot::Out);
        // Its memory comes back when the last part is answered: each has a hold on it.
        drop(slot);
        let mut bytes = granules_up(chunk.bytes().max(1));
        for (id, part) in parts {
            let Part::Read { path, extent, .. } = part else { continue };
            // Of parts that share a frame, one on the path that hangs keeps it.
            let bytes = if path == hung { std::mem::take(&mut bytes) } else { 0 };
            self.transfers.set_apart(id, Hung::Read { path, extent, bytes });
            self.handle.shared.counters.hung.add((path == hung).into());
        }
        let error = self.hung_error("read", &chunk, hung);
        self.filled(&chunk, Err(error));
    }

    /// A path hangs that has a part of a chunk to write: all its parts are set apart, and the chunk is
    /// placed anew.
    fn write_hung(&mut self, drain: Drain, parts: Vec<(TransferId, Part)>, hung: PathId) {
        self.writing -= 1;
        let Drain { mut sealed, done, .. } = drain;
        done.into_iter().for_each(|(_, piece)| self.free_piece(piece));
        if let Some(frame) = sealed.frame_to_write() {
            let pins = sealed.packed.is_none().then(|| sealed.chunk.clone());
            let dir = self.path(hung).capabilities().dir.clone();
            let mut bytes = frame.memory_bytes();
            for (id, part) in parts {
                let Part::Write { piece, .. } = part else { continue };
                if let Some(chunk) = &pins {
                    chunk.cell.lock().pin(&dir);
                }
                let is_hung = piece.path() == hung;
                let bytes = if is_hung { std::mem::take(&mut bytes) } else { 0 };
                let (frame, pins) = (frame.clone(), pins.clone());
                self.transfers.set_apart(id, Hung::Write { piece, frame, bytes, pins });
                self.handle.shared.counters.hung.add(is_hung.into());
            }
            if let Some(chunk) = &pins {
                self.uncount_coming(chunk);
            }
            // Its memory does not come back when the chunk is written.
            self.coming_bytes -= std::mem::take(&mut sealed.held_bytes);
        }
        sealed.tried.push((hung, Errno(libc::ETIMEDOUT)));
        self.handle.shared.counters.replaced.add(1);
        self.sealed.push_back(sealed);
    }

    /// A transfer that hung was answered: its memory and its space come back.
    pub(super) fn answered_late(&mut self, id: TransferId) {
        let Some((hung, free)) = self.transfers.answered_late(id) else { return };
        free.into_iter().for_each(|piece| self.free_piece(piece));
        if let Hung::Write { piece, frame, pins, .. } = hung {
            if let Some(chunk) = pins {
                let mut cell = chunk.cell.lock();
                // The chunk may have left that frame and be in another by now.
                let same =
                    cell.frame_to_read().is_some_and(|f| f.arena_range() == frame.arena_range());
                drop(frame);
                if same {
                    cell.residency.unpin();
                }
                let (woken, load) = cell.grant(&chunk);
                drop(cell);
                self.handle.wake(&chunk, woken, load);
            }
            self.free_piece(piece);
        }
        self.count_quarantine();
    }

    /// Takes note of a lease that waits for a chunk, unless its path does not answer.
    pub(super) fn want_load(&mut self, loading: Loading) {
        let path = loading.chunk().and_then(|chunk| self.on_hung_path(chunk));
        match (path, loading.chunk().cloned()) {
            (Some(path), Some(chunk)) => loading.refuse(&self.hung_error("read", &chunk, path)),
            _ => self.want(Want::Load(loading)),
        }
    }

    fn refuse_demands(&mut self) {
        for Demand { want, since } in std::mem::take(&mut self.demand) {
            let chunk = match &want {
                Want::Load(loading) => loading.chunk().cloned(),
                Want::Frame { .. } => None,
            };
            let hung = chunk.and_then(|chunk| Some((self.on_hung_path(&chunk)?, chunk)));
            match hung {
                Some((path, chunk)) => want.refuse(&self.hung_error("read", &chunk, path)),
                None => self.demand.push_back(Demand { want, since }),
            }
        }
    }

    /// Returns a path that has some of a chunk's copy and does not answer.
    pub(super) fn on_hung_path(&self, chunk: &ChunkRef) -> Option<PathId> {
        let cell = chunk.cell.lock();
        let mut paths = cell.disk.as_ref()?.extents().map(|(path, _)| path);
        paths.find(|path| self.health[path.index()].hung)
    }

    pub(super) fn hung_error(
        &self,
        attempted: &'static str,
        chunk: &ChunkRef,
        path: PathId,
    ) -> Error {
        Error::PathHung {
            attempted,
            key: chunk.key_text(),
            chunk: chunk.index(),
            path: self.path(path).capabilities().dir.clone(),
        }
    }

    fn count_quarantine(&self) {
        let bytes = self.transfers.hung().map(Hung::memory_bytes).sum();
        self.handle.shared.quarantined_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Returns for each path that does not answer how much memory it keeps, in words.
    pub(super) fn quarantine_holders(&self) -> Vec<String> {
        let one = |member: Member| {
            let of_it = self.transfers.hung().filter(|hung| hung.path() == member.id);
            let bytes: u64 = of_it.map(Hung::memory_bytes).sum();
            let dir = member.store.capabilities().dir.display().to_string();
            (bytes > 0).then(|| format!("path {dir}, which does not answer ({})", Bytes(bytes)))
        };
        self.handle.shared.paths.all().into_iter().filter_map(one).collect()
    }
}
