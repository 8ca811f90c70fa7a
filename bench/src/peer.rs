//! What a lease of a chunk in memory is held against: foyer's cache in memory, which has the same
//! bytes under the same names. Built with the feature `foyer` alone.

/// Returns what gets and drops the entry of a name, and says whether there is one; nothing without the
/// feature.
#[cfg(feature = "foyer")]
pub fn of(values: Vec<(String, bytes::Bytes)>) -> Option<impl Fn(&str) -> bool + Sync> {
    use foyer_memory::{Cache, S3FifoConfig};
    // Its default policy (LRU) takes an exclusive lock for every get; this one only shares it.
    let builder = Cache::builder(1024).with_eviction_config(S3FifoConfig::default());
    let cache: Cache<String, bytes::Bytes> = builder.build();
    for (name, value) in values {
        cache.insert(name, value);
    }
    Some(move |name: &str| cache.get(name).is_some())
}

/// As above.
#[cfg(not(feature = "foyer"))]
pub fn of(_: Vec<(String, bytes::Bytes)>) -> Option<fn(&str) -> bool> {
    None
}
