//! Passes over much memory, as the processor would not make them unasked: what is read next is
//! requested ahead, and what is written goes past the cache.
#![allow(unsafe_code)]

/// Bytes that are requested ahead of those that are worked on.
const AHEAD_BYTES: usize = 16 << 10;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Requests the lines that lie `AHEAD_BYTES` after those of `piece`, which a pass reaches next. The
/// processor's own look-ahead ends with each page, and keeps less under way than memory can take.
#[cfg(target_arch = "x86_64")]
pub(super) fn request_after(piece: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    let first = piece.as_ptr().cast::<i8>().wrapping_add(AHEAD_BYTES);
    for at in (0..piece.len()).step_by(LINE_BYTES) {
        // SAFETY: a request is a hint; whatever the address, it neither faults nor changes a value.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(at)) };
    }
}

/// Copies `from` to `into`, which is as long, without bringing what is in `into` into the cache first:
/// memory moves two thirds of what it would otherwise. Afterwards the copy is in no cache.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy_past_cache(from: &[u8], into: &mut [u8]) {
    // SAFETY: every processor of this architecture has SSE2.
    unsafe { copy_by_sse2(from, into) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
fn copy_by_sse2(from: &[u8], into: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_set_epi64x, _mm_sfence, _mm_stream_si128};
    const WIDTH: usize = size_of::<__m128i>();
    // SAFETY: any bytes are a value of this type, and the other way round.
    let (head, body, tail) = unsafe { into.align_to_mut::<__m128i>() };
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.split_at(body.len() * WIDTH);
    head.copy_from_slice(first);
    for (into, from) in body.iter_mut().zip(middle.chunks_exact(WIDTH)) {
        let [low, high] = halves(from);
        let value = _mm_set_epi64x(high, low);
        // SAFETY: the reference is to a whole, aligned value that is ours to write.
        unsafe { _mm_stream_si128(into, value) };
    }
    tail.copy_from_slice(last);
    // Whoever is told that the copy is complete must see it.
    _mm_sfence();
}

/// Returns 16 bytes as two numbers; of fewer, zeros.
#[cfg(target_arch = "x86_64")]
fn halves(bytes: &[u8]) -> [i64; 2] {
    let whole = bytes.try_into().map_or(0, u128::from_le_bytes);
    [whole as i64, (whole >> 64) as i64]
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn request_after(_: &[u8]) {}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy_past_cache(from: &[u8], into: &mut [u8]) {
    into.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_past_the_cache_is_a_copy_at_any_place_and_length() {
        let from: Vec<u8> = (0..1000_u32).map(|i| (i * 37 % 251) as u8).collect();
        for start in 0..20 {
            for len in (0..40).chain([500, 777]) {
                let mut into = vec![0xEE; 1000];
                copy_past_cache(&from[start + 3..][..len], &mut into[start..][..len]);
                assert_eq!(into[start..][..len], from[start + 3..][..len], "{start} {len}");
                let around = into[..start].iter().chain(&into[start + len..]);
                assert!(around.into_iter().all(|byte| *byte == 0xEE), "{start} {len}");
                request_after(&into);
            }
        }
    }
}
