//! The kernel calls that update one contiguous piece of one parameter, as jobs that can be cut.

use crate::kernel::{
    self, HalfWeights, Input, Isa, KernelError, Output, Planes, Scalars, SplitPlanes, Stochastic,
    WeightPlanes,
};
use crate::team::Job;

/// An update whose master weights are a plane of their own, or the caller's fp32 weights.
pub(crate) struct WithMaster<'a> {
    pub(crate) planes: Planes<'a>,
    pub(crate) gradient: Input<'a>,
    pub(crate) out: Output<'a>,
}

/// An update whose master weights are the caller's bf16 weights and the plane of lower halves.
pub(crate) struct Split<'a> {
    pub(crate) planes: SplitPlanes<'a>,
    pub(crate) gradient: Input<'a>,
}

/// An update of 16-bit weights that are rounded stochastically.
pub(crate) struct Rounded<'a> {
    pub(crate) planes: WeightPlanes<'a>,
    pub(crate) gradient: Input<'a>,
    pub(crate) chance: Stochastic,
}

impl Job for WithMaster<'_> {
    fn len(&self) -> usize {
        self.planes.p.len()
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        let Planes { p, m, v, vmax } = self.planes;
        let ((p, p_rest), (m, m_rest), (v, v_rest)) =
            (p.split_at_mut(at), m.split_at_mut(at), v.split_at_mut(at));
        let (vmax, vmax_rest) = vmax.map(|vmax| vmax.split_at_mut(at)).unzip();
        let (gradient, gradient_rest) = self.gradient.split_at(at);
        let (out, out_rest) = match self.out {
            Output::None => (Output::None, Output::None),
            Output::Bf16(raw) => both(raw.split_at_mut(at), Output::Bf16),
            Output::F16(raw) => both(raw.split_at_mut(at), Output::F16),
            Output::F32(raw) => both(raw.split_at_mut(at), Output::F32),
        };
        let rest = Planes { p: p_rest, m: m_rest, v: v_rest, vmax: vmax_rest };
        (
            WithMaster { planes: Planes { p, m, v, vmax }, gradient, out },
            WithMaster { planes: rest, gradient: gradient_rest, out: out_rest },
        )
    }

    fn run(self, isa: Isa, k: &Scalars) -> Result<(), KernelError> {
        kernel::update(isa, k, self.planes, self.gradient, self.out)
    }
}

impl Job for Split<'_> {
    fn len(&self) -> usize {
        self.planes.lo.len()
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        let SplitPlanes { lo, m, v, vmax, hi } = self.planes;
        let ((lo, lo_rest), (hi, hi_rest)) = (lo.split_at_mut(at), hi.split_at_mut(at));
        let ((m, m_rest), (v, v_rest)) = (m.split_at_mut(at), v.split_at_mut(at));
        let (vmax, vmax_rest) = vmax.map(|vmax| vmax.split_at_mut(at)).unzip();
        let (gradient, gradient_rest) = self.gradient.split_at(at);
        let rest = SplitPlanes { lo: lo_rest, m: m_rest, v: v_rest, vmax: vmax_rest, hi: hi_rest };
        (
            Split { planes: SplitPlanes { lo, m, v, vmax, hi }, gradient },
            Split { planes: rest, gradient: gradient_rest },
        )
    }

    fn run(self, isa: Isa, k: &Scalars) -> Result<(), KernelError> {
        kernel::update_split(isa, k, self.planes, self.gradient)
    }
}

impl Job for Rounded<'_> {
    fn len(&self) -> usize {
        self.planes.m.len()
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        let WeightPlanes { weights, m, v, vmax } = self.planes;
        let (weights, weights_rest) = match weights {
            HalfWeights::Bf16(raw) => both(raw.split_at_mut(at), HalfWeights::Bf16),
            HalfWeights::F16(raw) => both(raw.split_at_mut(at), HalfWeights::F16),
        };
        let ((m, m_rest), (v, v_rest)) = (m.split_at_mut(at), v.split_at_mut(at));
        let (vmax, vmax_rest) = vmax.map(|vmax| vmax.split_at_mut(at)).unzip();
        let (gradient, gradient_rest) = self.gradient.split_at(at);
        let Stochastic { key, first } = self.chance;
        let rest = WeightPlanes { weights: weights_rest, m: m_rest, v: v_rest, vmax: vmax_rest };
        (
            Rounded { planes: WeightPlanes { weights, m, v, vmax }, gradient, chance: self.chance },
            Rounded {
                planes: rest,
                gradient: gradient_rest,
                chance: Stochastic { key, first: first + at as u64 },
            },
        )
    }

    fn run(self, isa: Isa, k: &Scalars) -> Result<(), KernelError> {
        kernel::update_stochastic(isa, k, self.planes, self.gradient, self.chance)
    }
}

fn both<T, U>((left, right): (T, T), make: impl Fn(T) -> U) -> (U, U) {
    (make(left), make(right))
}
