//! State that Python holds, read piece by piece while an optimizer takes it.

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensortier::optimizer::{Error, Plane, StateSource};

use crate::hand_over::Tensor;

/// What torch calls the planes, and ours.
const NAMES: [(&str, Plane); 4] = [
    ("master_param", Plane::P),
    ("exp_avg", Plane::M),
    ("exp_avg_sq", Plane::V),
    ("max_exp_avg_sq", Plane::VMax),
];

/// Returns what a plane is called. The lower half of a master stands for the master.
pub(crate) fn name_of(plane: Plane) -> &'static str {
    NAMES.iter().find(|(_, known)| *known == plane).map_or(NAMES[0].0, |(name, _)| name)
}

/// Returns the plane of a name.
///
/// # Errors
/// `ValueError`.
pub(crate) fn plane_of(name: &str) -> PyResult<Plane> {
    let known = NAMES.iter().find(|(known, _)| *known == name);
    let unknown = || PyValueError::new_err(format!("there is no plane {name:?}"));
    known.map(|(_, plane)| *plane).ok_or_else(unknown)
}

/// A source that asks a callable for each piece.
pub(crate) struct Reader {
    updates: Vec<u64>,
    masters: Vec<bool>,
    read: Py<PyAny>,
    /// What the callable raised.
    pub(crate) raised: Option<PyErr>,
}

impl Reader {
    pub(crate) fn new(updates: Vec<u64>, masters: Vec<bool>, read: Py<PyAny>) -> Self {
        Reader { updates, masters, read, raised: None }
    }

    fn copy(
        &self,
        (param, plane): (usize, &str),
        range: &Range<u64>,
        out: &mut [f32],
    ) -> PyResult<()> {
        Python::attach(|py| {
            let answer = self.read.call1(py, (param, plane, range.start, range.end))?;
            // The owner is held until the copy is made.
            let (tensor, _owner): (Tensor, Bound<'_, PyAny>) = answer.extract(py)?;
            let from = tensor.floats()?;
            if from.len() != out.len() {
                return Err(PyValueError::new_err(format!(
                    "{} elements of {plane} where {} were asked for",
                    from.len(),
                    out.len()
                )));
            }
            out.copy_from_slice(from);
            Ok(())
        })
    }
}

impl StateSource for Reader {
    fn updates(&self, param: usize) -> u64 {
        self.updates.get(param).copied().unwrap_or(0)
    }

    fn has_master(&self, param: usize) -> bool {
        self.masters.get(param).copied().unwrap_or(false)
    }

    fn read(
        &mut self,
        param: usize,
        plane: Plane,
        range: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let name = name_of(plane);
        self.copy((param, name), &range, out).map_err(|raised| {
            let why = raised.to_string();
            self.raised = Some(raised);
            Error::Checkpoint { what: format!("{name} of parameter number {param}"), why }
        })
    }
}
