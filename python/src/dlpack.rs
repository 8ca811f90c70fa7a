//! DLPack, version 1 and what was before it: bytes under a lease going out, tensors of other
//! libraries coming in.
#![allow(unsafe_code, reason = "capsules carry C structures; see docs/unsafe.md")]

use std::ffi::{CStr, c_void};
use std::process;
use std::ptr::NonNull;

use bytes::Bytes;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::dtype::Element;

/// Adds the classes of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Foreign>()
}

const OLD: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const CPU: i32 = 1;
const READ_ONLY: u64 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    index: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: Type,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// Bytes on their way out, with what a consumer reads of them.
pub(crate) struct Exported {
    bytes: Bytes,
    dtype: Element,
    shape: Vec<i64>,
    strides: Vec<i64>,
    process: u32,
}

impl Exported {
    pub(crate) fn new(bytes: Bytes, dtype: Element, shape: Vec<i64>) -> Self {
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at].max(1);
        }
        Exported { bytes, dtype, shape, strides, process: process::id() }
    }

    fn tensor(&mut self) -> Tensor {
        let (code, bits) = self.dtype.dlpack();
        Tensor {
            data: self.bytes.as_ptr().cast_mut().cast(),
            device: Device { kind: CPU, index: 0 },
            dimensions: self.shape.len() as i32,
            dtype: Type { code, bits, lanes: 1 },
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }

    /// Ends the lease, on whichever thread; not in a forked child, which has no threads for that.
    fn end(self: Box<Self>) {
        if self.process != process::id() {
            Box::leak(self);
        }
    }
}

/// Returns a capsule that owns the bytes until it is consumed, and then gives them to the consumer.
///
/// # Errors
/// What the interpreter says when it cannot make a capsule.
pub(crate) fn export<'py>(
    py: Python<'py>,
    exported: Exported,
    versioned: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    let mut exported = Box::new(exported);
    let tensor = exported.tensor();
    let owner = Box::into_raw(exported).cast();
    let (pointer, name, destructor): (*mut c_void, _, ffi::PyCapsule_Destructor) = if versioned {
        let flags = READ_ONLY;
        let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
        let managed = ManagedVersioned { major: 1, minor: 0, owner, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED, unconsumed_versioned)
    } else {
        let deleter = Some(delete as unsafe extern "C" fn(_));
        (Box::into_raw(Box::new(Managed { tensor, owner, deleter })).cast(), OLD, unconsumed)
    };
    // SAFETY: the pointer is not null, the name is static, and the destructor fits the pointer.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor)) };
    // SAFETY: a new reference, or null with the exception set.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) }?;
    Ok(capsule.cast_into()?)
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: made by `export`, and deleted once, by its consumer or by its capsule.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as the structure that it came with.
    let exported: Box<Exported> = unsafe { Box::from_raw(managed.owner.cast()) };
    exported.end();
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: made by `export`, and deleted once, by its consumer or by its capsule.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as the structure that it came with.
    let exported: Box<Exported> = unsafe { Box::from_raw(managed.owner.cast()) };
    exported.end();
}

unsafe extern "C" fn unconsumed(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with the capsule that dies.
    if let Some(managed) = unsafe { still_ours(capsule, OLD) } {
        // SAFETY: nobody has consumed it, so it is not deleted yet.
        unsafe { delete(managed.as_ptr().cast()) }
    }
}

unsafe extern "C" fn unconsumed_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with the capsule that dies.
    if let Some(managed) = unsafe { still_ours(capsule, VERSIONED) } {
        // SAFETY: nobody has consumed it, so it is not deleted yet.
        unsafe { delete_versioned(managed.as_ptr().cast()) }
    }
}

/// Returns what a capsule carries, unless a consumer has renamed it.
///
/// # Safety
/// `capsule` is a capsule, and the interpreter is held.
unsafe fn still_ours(capsule: *mut ffi::PyObject, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: as the caller promises.
    let ours = unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 1;
    // SAFETY: it was just found to have this name.
    ours.then(|| unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) })
        .and_then(NonNull::new)
}

/// A tensor of another library, which stays alive as long as this.
#[pyclass(frozen, module = "tensortier._tensortier")]
#[derive(Debug)]
struct Foreign {
    /// Not consumed: it frees the tensor when it dies.
    _capsule: Py<PyAny>,
    address: usize,
    dtype: &'static str,
    shape: Vec<i64>,
    contiguous: bool,
    read_only: bool,
}

#[pymethods]
impl Foreign {
    #[new]
    fn look_at(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let wrong = || PyTypeError::new_err("not a capsule of DLPack that is still to be consumed");
        let versioned = capsule_pointer(capsule, VERSIONED);
        let (tensor, read_only) = match versioned {
            Some(pointer) => {
                let managed = pointer.cast::<ManagedVersioned>();
                // SAFETY: a capsule of this name carries this structure, and is alive.
                let managed = unsafe { managed.as_ref() };
                if managed.major != 1 {
                    let text = format!("DLPack of version {} is not known; 1 is", managed.major);
                    return Err(PyBufferError::new_err(text));
                }
                (&managed.tensor, managed.flags & READ_ONLY != 0)
            }
            None => {
                let managed = capsule_pointer(capsule, OLD).ok_or_else(wrong)?.cast::<Managed>();
                // SAFETY: a capsule of this name carries this structure, and is alive.
                (&unsafe { managed.as_ref() }.tensor, false)
            }
        };
        if tensor.device.kind != CPU {
            let text = "the tensor is on a device; copy it to host memory first";
            return Err(PyValueError::new_err(text));
        }
        let Type { code, bits, lanes } = tensor.dtype;
        let dtype = Element::of_dlpack(code, bits).filter(|_| lanes == 1).ok_or_else(|| {
            let text = format!("no element type has code {code}, {bits} bits and {lanes} lanes");
            PyTypeError::new_err(text)
        })?;
        // SAFETY: a tensor has as many extents as dimensions.
        let shape = unsafe { numbers(tensor.shape, tensor.dimensions) };
        // SAFETY: and as many strides, or null for none.
        let strides = unsafe { numbers(tensor.strides, tensor.dimensions) };
        Ok(Foreign {
            address: tensor.data as usize + tensor.byte_offset as usize,
            dtype: dtype.name(),
            contiguous: tensor.strides.is_null() || is_contiguous(&shape, &strides),
            shape,
            read_only,
            _capsule: capsule.clone().unbind(),
        })
    }

    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype
    }

    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.shape.clone()
    }

    #[getter]
    fn contiguous(&self) -> bool {
        self.contiguous
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.read_only
    }
}

/// Returns what a capsule of this name carries.
fn capsule_pointer(capsule: &Bound<'_, PyAny>, name: &CStr) -> Option<NonNull<c_void>> {
    let capsule = capsule.cast::<PyCapsule>().ok()?;
    // SAFETY: it is a capsule, and the interpreter is held.
    unsafe { still_ours(capsule.as_ptr(), name) }
}

/// Returns `count` numbers; none if there is no array.
///
/// # Safety
/// `start` is null or an array of `count` numbers.
unsafe fn numbers(start: *const i64, count: i32) -> Vec<i64> {
    if start.is_null() || count <= 0 {
        return Vec::new();
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(start, count as usize) }.to_vec()
}

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(extent, stride)| {
        let fits = *extent == 1 || *stride == expected;
        expected *= extent;
        fits
    })
}
