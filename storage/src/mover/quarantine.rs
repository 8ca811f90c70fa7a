//! Paths that do not answer: what they have is set apart until it is answered, those who wait for it
//! are told, and what was to be written goes elsewhere from the same frame.

use crate::arena::granules_up;
use crate::catalog::{ChunkRef, FrameSlot, Piece};
use crate::error::{Errno, Error};
use crate::id::PathId;
use crate::path::{Condition, Member};
use crate::sync::Ordering;
use crate::units::Bytes;

use super::state::Mover;
use super::transfers::{Hung, Read, Transfer, TransferId};
use super::want::{Demand, Want};
use super::{Loading, Msg, Sealed};

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
        for (id, transfer) in self.transfers.take_all(path) {
            self.handle.shared.counters.hung.add(1);
            match transfer {
                Transfer::Read(read) => self.read_hung(id, &read),
                Transfer::Write { sealed, piece } => self.write_hung(id, sealed, piece),
            }
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

    fn read_hung(&mut self, id: TransferId, read: &Read) {
        let Read { chunk, path, .. } = read;
        let mut cell = chunk.cell.lock();
        let extent = cell.disk.as_ref().map(|disk| disk.piece.extent());
        let slot = cell.take_frame(FrameSlot::Out);
        drop(cell);
        if let (FrameSlot::Filling(guard), Some(extent)) = (slot, extent) {
            let bytes = granules_up(chunk.bytes().max(1));
            let hung = Hung::Read { path: *path, extent, _memory: guard, bytes };
            self.transfers.set_apart(id, hung);
        }
        let error = self.hung_error("read", chunk, *path);
        self.filled(chunk, Err(error));
    }

    fn write_hung(&mut self, id: TransferId, mut sealed: Sealed, piece: Piece) {
        self.writing -= 1;
        let path = piece.path();
        if let Some(frame) = sealed.frame_to_write() {
            let pins = sealed.packed.is_none().then(|| sealed.chunk.clone());
            if let Some(chunk) = &pins {
                chunk.cell.lock().pin(&self.path(path).capabilities().dir);
                self.uncount_coming(chunk);
            }
            // Its memory does not come back when the chunk is written.
            self.coming_bytes -= std::mem::take(&mut sealed.held_bytes);
            self.transfers.set_apart(id, Hung::Write { piece, frame, pins });
        }
        sealed.tried.push((path, Errno(libc::ETIMEDOUT)));
        self.handle.shared.counters.replaced.add(1);
        self.sealed.push_back(sealed);
    }

    /// A transfer that hung was answered: its memory and its space come back.
    pub(super) fn answered_late(&mut self, id: TransferId) {
        let Some((hung, free)) = self.transfers.answered_late(id) else { return };
        free.into_iter().for_each(|piece| self.free_piece(piece));
        if let Hung::Write { piece, frame, pins } = hung {
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

    /// Returns the path of a chunk's copy if it does not answer.
    pub(super) fn on_hung_path(&self, chunk: &ChunkRef) -> Option<PathId> {
        let path = chunk.cell.lock().disk.as_ref()?.piece.path();
        self.health[path.index()].hung.then_some(path)
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
