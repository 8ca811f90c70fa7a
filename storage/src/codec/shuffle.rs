//! Byte-plane shuffling: the first bytes of all elements, then their second bytes, and so on. Bytes
//! of one significance resemble each other more than the bytes of one element do.

/// Writes the byte planes of `from`, whose elements have `width` bytes, to `to`, which is as long.
/// What is left behind the last whole element stays behind the planes.
///
/// # Panics
/// When the lengths differ.
pub(super) fn shuffle(width: u8, from: &[u8], to: &mut [u8]) {
    match width {
        2 => planes_of::<2>(from, to),
        4 => planes_of::<4>(from, to),
        8 => planes_of::<8>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Undoes [`shuffle`].
///
/// # Panics
/// When the lengths differ.
pub(super) fn unshuffle(width: u8, from: &[u8], to: &mut [u8]) {
    match width {
        2 => elements_of::<2>(from, to),
        4 => elements_of::<4>(from, to),
        8 => elements_of::<8>(from, to),
        _ => to.copy_from_slice(from),
    }
}

fn planes_of<const WIDTH: usize>(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "planes are as long as their elements");
    let (elements, rest) = from.as_chunks::<WIDTH>();
    let (planes, end) = to.split_at_mut(elements.len() * WIDTH);
    for plane in 0..WIDTH {
        let plane_of = &mut planes[plane * elements.len()..][..elements.len()];
        for (byte, element) in plane_of.iter_mut().zip(elements) {
            *byte = element[plane];
        }
    }
    end.copy_from_slice(rest);
}

fn elements_of<const WIDTH: usize>(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "planes are as long as their elements");
    let (elements, end) = to.as_chunks_mut::<WIDTH>();
    let (planes, rest) = from.split_at(elements.len() * WIDTH);
    for plane in 0..WIDTH {
        let plane_of = &planes[plane * elements.len()..][..elements.len()];
        for (byte, element) in plane_of.iter().zip(elements.iter_mut()) {
            element[plane] = *byte;
        }
    }
    end.copy_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn planes_stand_in_order_with_the_rest_behind() {
        let mut to = [0; 7];
        shuffle(2, &[1, 2, 3, 4, 5, 6, 7], &mut to);
        assert_eq!(to, [1, 3, 5, 2, 4, 6, 7]);
        shuffle(8, &[1, 2, 3, 4, 5, 6, 7], &mut to);
        assert_eq!(to, [1, 2, 3, 4, 5, 6, 7]);
    }

    proptest! {
        #[test]
        fn it_is_undone(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            width in prop_oneof![Just(1u8), Just(2), Just(3), Just(4), Just(8)],
        ) {
            let (mut planes, mut back) = (vec![0; bytes.len()], vec![0; bytes.len()]);
            shuffle(width, &bytes, &mut planes);
            unshuffle(width, &planes, &mut back);
            prop_assert_eq!(back, bytes);
        }
    }
}
