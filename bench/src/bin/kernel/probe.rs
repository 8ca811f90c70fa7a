//! The probe: the streams of each row, touched with hardly any arithmetic.
//!
//! Values stay ordinary numbers however often it runs, so that the kernels can work on what it leaves.
//! Slices are arguments of their own, so that the loops become vectors.

/// Reads.
#[inline(never)]
pub(crate) fn read(grad: &[u16]) -> u16 {
    let mut sums = [0_u16; 64];
    for row in grad.as_chunks::<64>().0 {
        for (sum, &g) in sums.iter_mut().zip(row) {
            *sum ^= g;
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

/// Reads a gradient, changes three planes.
#[inline(never)]
pub(crate) fn planes(p: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[u16]) {
    for (((p, m), v), &g) in p.iter_mut().zip(m).zip(v).zip(grad) {
        change(p, m, v, g);
    }
}

/// Reads an fp32 gradient, changes three planes: the mix of the common C probes.
#[inline(never)]
pub(crate) fn full(p: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32]) {
    for (((p, m), v), &g) in p.iter_mut().zip(m).zip(v).zip(grad) {
        *m = *m * 0.999 + g * 1e-6;
        *v = *v * 0.999 + 1e-7;
        *p = *p * 0.999 + *m * 1e-6;
    }
}

/// Reads a gradient, changes three planes, writes weights.
#[inline(never)]
pub(crate) fn planes_and_weights(
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    grad: &[u16],
    weights: &mut [u16],
) {
    for ((((p, m), v), &g), weight) in p.iter_mut().zip(m).zip(v).zip(grad).zip(weights) {
        change(p, m, v, g);
        *weight = g;
    }
}

/// Reads a gradient, changes two planes and two arrays of 16-bit elements.
#[inline(never)]
pub(crate) fn halves(
    m: &mut [f32],
    v: &mut [f32],
    grad: &[u16],
    lo: &mut [u16],
    weights: &mut [u16],
) {
    for ((((m, v), &g), lo), weight) in m.iter_mut().zip(v).zip(grad).zip(lo).zip(weights) {
        moments(m, v, g);
        *lo ^= 1;
        *weight ^= 1;
    }
}

/// Reads a gradient, changes two planes and the weights.
#[inline(never)]
pub(crate) fn weights(m: &mut [f32], v: &mut [f32], grad: &[u16], weights: &mut [u16]) {
    for (((m, v), &g), weight) in m.iter_mut().zip(v).zip(grad).zip(weights) {
        moments(m, v, g);
        *weight ^= 1;
    }
}

/// Reads a gradient, changes another.
#[inline(never)]
pub(crate) fn sums(total: &mut [u16], grad: &[u16]) {
    for (total, &g) in total.iter_mut().zip(grad) {
        *total ^= g & 1;
    }
}

#[inline(always)]
fn change(p: &mut f32, m: &mut f32, v: &mut f32, g: u16) {
    moments(m, v, g);
    *p = *p * 0.999 + 1e-4;
}

#[inline(always)]
fn moments(m: &mut f32, v: &mut f32, g: u16) {
    *m = *m * 0.9 + f32::from_bits(u32::from(g) << 16) * 0.1;
    *v = *v * 0.999 + 1e-6;
}
