//! A synthetic model: the tensors of a GPT of any number of parameters, and values for them.

use std::ops::Range;

use crate::elements::{self, ElementsMut};

/// Rows of the token embedding and of the position embedding, where the model is large enough.
const VOCABULARY: u64 = 50_257;
const POSITIONS: u64 = 1_024;

/// The width of one attention head; a layer count of `width / HEAD` is what GPTs tend to have.
const HEAD: u64 = 64;

/// Sets weights apart from gradients made of the same seed.
const NAME: u64 = 0x7769_6474;

/// A tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelTensor {
    /// Its name, as GPT-2 has it.
    pub(crate) name: String,
    /// Its shape.
    pub(crate) shape: Vec<u64>,
}

impl ModelTensor {
    /// Returns the number of its elements.
    #[cfg(test)]
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Returns the tensors of a GPT-like model of exactly `parameters` parameters, in model order; the
/// same for the same number.
///
/// # Errors
/// One line, if there are none.
pub(crate) fn tensors(parameters: u64) -> Result<Vec<ModelTensor>, String> {
    if parameters == 0 {
        return Err(
            "--params 0: a model needs at least one parameter; write for example 500M".into()
        );
    }
    let Some(size) = Size::fitting(parameters) else {
        return Ok(vec![tensor("wte.weight".into(), &[parameters])]);
    };
    let width = size.width;
    let left = parameters - size.body();
    let mut tensors = vec![tensor("wte.weight".into(), &[left / width, width])];
    tensors.push(tensor("wpe.weight".into(), &[size.positions, width]));
    for layer in 0..size.layers {
        push_layer(&mut tensors, layer, width);
    }
    tensors.push(tensor("ln_f.weight".into(), &[width]));
    tensors.push(tensor("ln_f.bias".into(), &[width]));
    // What no whole embedding row can take; makes the total exact, and an odd length common.
    if !left.is_multiple_of(width) {
        tensors.push(tensor("lm_head.bias".into(), &[left % width]));
    }
    Ok(tensors)
}

/// Fills `out` with the elements `range` of the `index`-th tensor: bell-shaped around 0 with a
/// standard deviation of 0.018, depending only on the seed, the tensor and the element.
///
/// # Panics
/// If `range` and `out` differ in length.
pub(crate) fn fill(seed: u64, index: u64, range: Range<u64>, out: ElementsMut<'_>) {
    elements::fill(&[NAME, seed, index], range, out, from_hash);
}

/// Four uniform numbers of 16 bits added up: near enough to a normal distribution. Integers until
/// the last step, so every machine gets the same bits.
#[inline(always)]
fn from_hash(hash: u32) -> f32 {
    const SCALE: f32 = 1.0 / (1 << 21) as f32;
    let other = hash.wrapping_mul(0x2c1b_3c6d) ^ (hash >> 13);
    let halves = |bits: u32| (bits & 0xffff) as i32 + (bits >> 16) as i32;
    (halves(hash) + halves(other) - 2 * 0xffff) as f32 * SCALE
}

/// How large the parts of a model are, without its token embedding.
#[derive(Debug, Clone, Copy)]
struct Size {
    width: u64,
    layers: u64,
    positions: u64,
}

impl Size {
    /// Returns the size whose number of layers suits its width best, or nothing if even the
    /// smallest model has more parameters.
    fn fitting(parameters: u64) -> Option<Size> {
        let widths = [4, 8, 16, 32].into_iter().chain((1..=1024).map(|heads| heads * HEAD));
        let sizes = widths.filter_map(|width| Size::of_width(parameters, width));
        sizes.min_by_key(|size| {
            let usual = (size.width / HEAD).max(1);
            (size.layers.abs_diff(usual), u64::MAX - size.width)
        })
    }

    /// Returns as many layers of this width as leave room for the embeddings, at least one.
    fn of_width(parameters: u64, width: u64) -> Option<Size> {
        // In a small model the embeddings get a third, or nothing else would be left.
        let vocabulary = VOCABULARY.min(parameters / (3 * width)).max(1);
        let positions = POSITIONS.min(vocabulary / 8).max(1);
        let mut size = Size { width, layers: 0, positions };
        let room = parameters.checked_sub(size.body() + vocabulary * width)?;
        size.layers = room / layer_elements(width);
        (size.layers > 0).then_some(size)
    }

    /// Returns the number of parameters of all but the token embedding.
    fn body(self) -> u64 {
        self.layers * layer_elements(self.width) + (self.positions + 2) * self.width
    }
}

fn layer_elements(width: u64) -> u64 {
    12 * width * width + 13 * width
}

fn push_layer(tensors: &mut Vec<ModelTensor>, layer: u64, width: u64) {
    let mut push =
        |name: &str, shape: &[u64]| tensors.push(tensor(format!("h.{layer}.{name}"), shape));
    push("ln_1.weight", &[width]);
    push("ln_1.bias", &[width]);
    push("attn.c_attn.weight", &[width, 3 * width]);
    push("attn.c_attn.bias", &[3 * width]);
    push("attn.c_proj.weight", &[width, width]);
    push("attn.c_proj.bias", &[width]);
    push("ln_2.weight", &[width]);
    push("ln_2.bias", &[width]);
    push("mlp.c_fc.weight", &[width, 4 * width]);
    push("mlp.c_fc.bias", &[4 * width]);
    push("mlp.c_proj.weight", &[4 * width, width]);
    push("mlp.c_proj.bias", &[width]);
}

fn tensor(name: String, shape: &[u64]) -> ModelTensor {
    ModelTensor { name, shape: shape.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_parameters_is_met_exactly() {
        let sizes =
            (1..3000).chain((12..44).flat_map(|bits| [(1 << bits) - 1, (1 << bits) + 12_345]));
        for parameters in sizes.chain([500_000_000, 124_439_808, 70_000_000_000]) {
            let tensors = tensors(parameters).unwrap();
            assert_eq!(tensors.iter().map(ModelTensor::elements).sum::<u64>(), parameters);
            let mut names: Vec<_> = tensors.iter().map(|tensor| &tensor.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), tensors.len());
            assert!(tensors.iter().all(|tensor| tensor.elements() > 0), "{parameters}");
        }
        assert!(tensors(0).unwrap_err().contains("at least one parameter"));
    }

    #[test]
    fn a_large_model_looks_like_a_gpt() {
        let tensors = tensors(500_000_000).unwrap();
        let layers = tensors.iter().filter(|tensor| tensor.name.ends_with("c_attn.weight")).count();
        let (rows, width) = (tensors[0].shape[0], tensors[0].shape[1]);
        assert!((16..28).contains(&layers), "{layers}");
        assert!((1024..1600).contains(&width), "{width}");
        assert!((50_257..80_000).contains(&rows), "{rows}");
    }

    #[test]
    fn values_are_bell_shaped_and_do_not_depend_on_the_cut() {
        let floats = |range: Range<u64>| {
            let mut out = vec![f32::NAN; (range.end - range.start) as usize];
            fill(7, 3, range, ElementsMut::F32(&mut out));
            out
        };
        let all = floats(0..1_000_000);
        assert_eq!(all[60_000..140_000], floats(60_000..140_000));
        let mean = all.iter().map(|value| *value as f64).sum::<f64>() / 1e6;
        let variance = all.iter().map(|value| (*value as f64).powi(2)).sum::<f64>() / 1e6;
        assert!(mean.abs() < 1e-3, "{mean}");
        assert!((0.016..0.020).contains(&variance.sqrt()), "{}", variance.sqrt());
        let beyond = all.iter().filter(|value| value.abs() > 0.036).count();
        assert!((20_000..60_000).contains(&beyond), "{beyond} beyond two deviations");
        assert_eq!([all[0].to_bits(), all[1].to_bits(), all[65_536].to_bits()], GOLDEN);
    }

    const GOLDEN: [u32; 3] = [0x3c8e_2400, 0x3d0b_3d80, 0x3c1e_de00];
}
