//! The object store of tensortier: memory, paths, placement, residency.
