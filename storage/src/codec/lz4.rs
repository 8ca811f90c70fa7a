//! One block through lz4 and back, into memory that is there already.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

/// Compressed bytes that are no lz4 block of the length expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Compresses `block` into `out`, which grows to what the worst case needs, and returns the length.
/// The result may be longer than the block.
pub(super) fn compress(block: &[u8], out: &mut Vec<u8>, table: &mut CompressTable) -> usize {
    let most = get_maximum_output_size(block.len());
    if out.len() < most {
        out.resize(most, 0);
    }
    // It fails only for want of room; "longer than the block" then means the same to the caller.
    compress_into_with_table(block, out, table).unwrap_or(most)
}

/// Decompresses exactly `into.len()` bytes. Allocates nothing, whatever the input claims.
///
/// # Errors
/// [`Malformed`] when `from` is no lz4 block or one of another length; the bytes of `into` are
/// unspecified then.
pub(super) fn decompress(from: &[u8], into: &mut [u8]) -> Result<(), Malformed> {
    match decompress_into(from, into) {
        Ok(len) if len == into.len() => Ok(()),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_come_back_and_any_other_length_is_malformed(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..3000),
            off in 1usize..50,
        ) {
            let (mut out, mut table) = (Vec::new(), CompressTable::large());
            let len = compress(&bytes, &mut out, &mut table);
            let mut back = vec![0xAA; bytes.len()];
            prop_assert_eq!(decompress(&out[..len], &mut back), Ok(()));
            prop_assert_eq!(&back, &bytes);
            prop_assert_eq!(decompress(&out[..len], &mut vec![0; bytes.len() + off]), Err(Malformed));
            let shorter = bytes.len().saturating_sub(off);
            if shorter < bytes.len() {
                prop_assert_eq!(decompress(&out[..len], &mut vec![0; shorter]), Err(Malformed));
            }
        }

        #[test]
        fn garbage_is_malformed_or_of_the_right_length(
            garbage in prop::collection::vec(any::<u8>(), 0..400),
            len in 0usize..2000,
        ) {
            let _ = decompress(&garbage, &mut vec![0; len]);
        }
    }
}
