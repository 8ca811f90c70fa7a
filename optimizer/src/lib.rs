//! Exact, offloaded Adam and AdamW over the tensortier store.
