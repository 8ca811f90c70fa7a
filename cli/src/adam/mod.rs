//! `tensortier adam`: AdamW steps over a model whose state lives on storage paths.

mod figures;
mod limit;
mod model;
mod places;
mod progress;
mod run;
mod save;
mod verify;

pub(crate) use run::run;
