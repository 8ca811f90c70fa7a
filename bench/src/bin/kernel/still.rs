//! Steps without a gradient: what subnormal moments cost, kept and flushed.

use std::time::Instant;

use tensortier::optimizer::hyper::{Hyper, Subnormals};
use tensortier::optimizer::kernel::{Input, Isa, Output, Planes, Scalars, update};

use crate::Failure;

const PARAMS: usize = 64 << 10;
const STEPS: u64 = 1000;
const PASSES: usize = 5;

/// Prints parameters per second after 1,000 steps of zeros that followed a few of tiny gradients.
pub(crate) fn measure(isa: Isa) -> Result<(), Failure> {
    println!("\nwithout a gradient, {PARAMS} parameters, {STEPS} steps");
    for subnormals in [Subnormals::Keep, Subnormals::Flush] {
        let hyper = Hyper { subnormals, ..Hyper::default() };
        let (mut p, mut m, mut v) = (vec![0.5; PARAMS], vec![1e-3; PARAMS], vec![1e-4; PARAMS]);
        let zeros = vec![0_u16; PARAMS];
        let mut weights = vec![0_u16; PARAMS];
        let mut steps = |first: u64| -> Result<f64, Failure> {
            let start = Instant::now();
            for t in first..first + STEPS {
                let k = Scalars::at(&hyper, t, 1.0);
                let planes = Planes { p: &mut p, m: &mut m, v: &mut v, vmax: None };
                update(isa, &k, planes, Input::Bf16(&zeros), Output::Bf16(&mut weights))?;
            }
            Ok((PARAMS as f64 * STEPS as f64) / start.elapsed().as_secs_f64() / 1e6)
        };
        let first = steps(1)?;
        let mut later = Vec::new();
        for pass in 1..=PASSES as u64 {
            later.push(steps(1 + pass * STEPS)?);
        }
        later.sort_by(f64::total_cmp);
        let later = later[PASSES / 2];
        let subnormal = m.iter().filter(|m| m.is_subnormal()).count();
        println!(
            "{subnormals:?}: {first:.0} Mparam/s, later {later:.0}; {subnormal} subnormal moments"
        );
    }
    Ok(())
}
