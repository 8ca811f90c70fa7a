//! Verbs on the device's tier: shared and exclusive leases on its memory, and reading ahead into it.

use super::content::contents;
use super::held::Held;
use super::operation::Operation;
use super::worker::{Done, PATIENCE, Worker};

impl Worker<'_> {
    pub(super) fn device_read(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        let Some((gpu, tier)) = &self.common.gpu else { return Ok(()) };
        let Some((object, index, range)) = self.chunk(&key, operation.a)? else { return Ok(()) };
        let ticket = tier.lease_read(&object, index);
        if operation.b.is_multiple_of(8) {
            // Given up before it comes.
            return Ok(());
        }
        let lease = match ticket.wait_timeout(PATIENCE) {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return self.may_fail(&error),
            Err(_) => return Err(format!("{key}: never granted on the device")),
        };
        let bytes = gpu.read(&lease)?;
        if bytes.len() != range.len() {
            return Err(format!("{key}: {} bytes on the device, not {range:?}", bytes.len()));
        }
        self.verify(&key, range.start, &bytes)?;
        if operation.b.is_multiple_of(3) {
            let what = format!("chunk {index} of {key} on the device");
            self.keep(&key, Some(Held::device(lease, gpu, bytes, what)));
        }
        Ok(())
    }

    pub(super) fn device_write(&mut self, operation: &Operation) -> Done {
        let key = self.own_key(operation.key);
        let limit = self.exclusive_limit()?;
        let Some((gpu, tier)) = &self.common.gpu else { return Ok(()) };
        let Some((object, index, range)) = self.chunk(&key, operation.a)? else { return Ok(()) };
        let mut lease = match tier.lease_write(&object, index).wait_timeout(limit) {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return self.may_fail(&error),
            Err(_) if limit == PATIENCE => {
                return Err(format!("{key}: never granted on the device"));
            }
            Err(_) => return Ok(()),
        };
        self.verify(&key, range.start, &gpu.read(&lease)?)?;
        if operation.b.is_multiple_of(4) {
            // It ends as it was.
            return Ok(());
        }
        let bytes = contents(operation.seed, range.len() as u64);
        let written = gpu.write(&mut lease, bytes.clone())?;
        let done = if operation.b.is_multiple_of(3) {
            written.wait().map_err(|error| format!("the device: {error}"))?;
            lease.end()
        } else {
            lease.end_after(&written)
        };
        self.model.get_mut(&key).ok_or("no model")?.write(range.start, &bytes);
        if operation.b.is_multiple_of(2) {
            // Whoever asks for it meanwhile waits.
            return Ok(());
        }
        match done.wait_timeout(PATIENCE) {
            Ok(answer) => answer.map_err(|error| format!("{key}: copying back: {error}")),
            Err(_) => Err(format!("{key}: never copied back")),
        }
    }

    pub(super) fn device_ahead(&mut self, operation: &Operation) -> Done {
        let key = self.any_key(operation);
        if let Some((_, tier)) = &self.common.gpu
            && self.expected(&key).is_some()
        {
            tier.prefetch(&self.object(&key)?);
        }
        Ok(())
    }
}
