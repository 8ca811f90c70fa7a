//! Verbs on several objects at once, each with its own outcome.

use tensortier_storage::dtype::DType;
use tensortier_storage::error::Error;
use tensortier_storage::store::{Put, Returned};

use super::content::{Content, contents};
use super::numbers::mix;
use super::operation::Operation;
use super::ranges::poll;
use super::worker::{Done, Worker};

impl Worker<'_> {
    /// Returns the keys of a batch; one may come twice.
    fn keys(&self, operation: &Operation) -> Vec<String> {
        let one =
            |n| Operation { key: mix(operation.key ^ n), seed: mix(operation.b ^ n), ..*operation };
        (0..1 + operation.b % 4).map(|n| self.any_key(&one(n))).collect()
    }

    /// Returns the keys of a batch of our own.
    fn own_keys(&self, operation: &Operation) -> Vec<String> {
        (0..1 + operation.b % 4).map(|n| self.own_key(mix(operation.key ^ n))).collect()
    }

    pub(super) fn put_many(&mut self, operation: &Operation) -> Done {
        let (reproducible, store) = self.making(operation);
        let put = |(n, key): (u64, String)| {
            let len = self.length(&Operation { b: mix(operation.b ^ n), ..*operation });
            Put::new(key, DType::U8, &[len], contents(operation.seed ^ n, len))
        };
        let puts: Vec<_> = (0..).zip(self.own_keys(operation)).map(put).collect();
        let outcomes: Vec<Result<(), Error>> = if operation.a.is_multiple_of(2) {
            store.put_many(&puts).into_iter().map(|outcome| outcome.map(drop)).collect()
        } else {
            let outcomes = poll(store.put_many_async(puts.clone()), None).unwrap_or_default();
            let one = |outcome: Result<_, Returned<_>>| outcome.map(drop).map_err(|e| e.error);
            outcomes.into_iter().map(one).collect()
        };
        if outcomes.len() != puts.len() {
            return Err(format!("{} outcomes of {} puts", outcomes.len(), puts.len()));
        }
        for (Put { key, bytes, .. }, outcome) in puts.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => drop(self.model.insert(key, Content::new(bytes, reproducible))),
                Err(error) => self.may_fail(&error)?,
            }
        }
        Ok(())
    }

    pub(super) fn get_many(&mut self, operation: &Operation) -> Done {
        let keys = self.keys(operation);
        let into = |key: &String| vec![0xA5; self.expected(key).unwrap_or(7)];
        let mut buffers: Vec<_> = keys.iter().map(into).collect();
        let answers: Vec<_> = if operation.a.is_multiple_of(2) {
            let outcomes = self.common.store.get_into_many(keys.iter().zip(&mut buffers));
            let filled = |(outcome, buffer): (Result<(), Error>, _)| outcome.map(|()| buffer);
            outcomes.into_iter().zip(buffers).map(filled).collect()
        } else {
            let asked = self.common.store.get_into_many_async(keys.iter().zip(buffers));
            let outcomes = poll(asked, None).unwrap_or_default();
            outcomes.into_iter().map(|outcome| outcome.map_err(|e| e.error)).collect()
        };
        if answers.len() != keys.len() {
            return Err(format!("{} outcomes of {} reads", answers.len(), keys.len()));
        }
        keys.iter().zip(answers).try_for_each(|(key, answer)| self.got(key, answer))
    }

    pub(super) fn evict_many(&mut self, operation: &Operation) -> Done {
        let keys = self.keys(operation);
        let outcomes = self.common.store.evict_many(&keys);
        for (key, outcome) in keys.iter().zip(outcomes) {
            match outcome {
                Ok(()) if self.expected(key).is_some() => {}
                Ok(()) => return Err(format!("{key} was evicted and is not there")),
                Err(error) if self.expected(key).is_none() => self.must_be_missing(key, &error)?,
                Err(error) => self.may_fail(&error)?,
            }
        }
        Ok(())
    }

    pub(super) fn delete_many(&mut self, operation: &Operation) -> Done {
        let keys = self.own_keys(operation);
        let outcomes = self.common.store.delete_many(&keys);
        for (key, outcome) in keys.iter().zip(outcomes) {
            match (outcome, self.model.remove(key)) {
                (Ok(()), Some(_)) => {}
                (Err(error), None) => self.must_be_missing(key, &error)?,
                (outcome, model) => {
                    let known = model.is_some();
                    return Err(format!("deleting {key}: {outcome:?}, and it was there: {known}"));
                }
            }
        }
        Ok(())
    }
}
