//! The report of a step, as Python has it.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensortier::optimizer::{Outcome, StepReport};

/// Returns a report, the fields of `tensortier.StepReport`.
pub(crate) fn told<'py>(py: Python<'py>, report: &StepReport) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    let param = match &report.outcome {
        Outcome::Skipped { param } => param.as_deref(),
        _ => None,
    };
    told.set_item("step", report.step)?;
    told.set_item("applied", report.outcome == Outcome::Applied)?;
    told.set_item("non_finite_param", param)?;
    told.set_item("norm", report.norm.map(|norm| norm.value()))?;
    told.set_item("finite", report.norm.map(|norm| norm.finite))?;
    told.set_item("gradient_factor", report.gradient_factor)?;
    told.set_item("elements", report.elements)?;
    for (name, moved) in [
        ("updated", report.updated),
        ("reads", report.reads),
        ("writes", report.writes),
        ("hits", report.hits),
    ] {
        told.set_item(name, moved.subgroups)?;
        told.set_item(format!("{name}_bytes"), moved.bytes)?;
    }
    told.set_item("paths", report.paths.clone())?;
    for (name, time) in [
        ("seconds", report.elapsed),
        ("looking", report.looking),
        ("waiting_on_reads", report.waiting_on_reads),
        ("computing", report.computing),
        ("waiting_on_writes", report.waiting_on_writes),
    ] {
        told.set_item(name, time.as_secs_f64())?;
    }
    Ok(told)
}
