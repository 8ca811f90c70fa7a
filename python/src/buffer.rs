//! Memory of Python objects, as bytes: where it is, and what keeps it there.
#![allow(unsafe_code, reason = "the buffer protocol is C; see docs/unsafe.md")]

use std::ffi::{c_char, c_int, c_void};
use std::slice;

use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

use crate::dtype::Element;

/// Adds the classes of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Buffer>()
}

/// A tensor in the memory of a Python object that Python's side keeps alive and in place: for a
/// blocking call until it returns, for an asynchronous one until its completion was told.
#[derive(Debug, FromPyObject)]
pub(crate) struct Tensor {
    /// The type of its elements.
    pub(crate) dtype: Element,
    /// Its extents in elements, slowest first.
    pub(crate) shape: Vec<u64>,
    address: usize,
    nbytes: usize,
}

/// The bytes of a [`Tensor`].
#[derive(Debug)]
pub(crate) struct Memory {
    address: usize,
    bytes: usize,
}

impl Tensor {
    /// Returns the tensor's bytes.
    pub(crate) fn memory(&self) -> Memory {
        Memory { address: self.address, bytes: self.nbytes }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        let start = self.address as *const u8;
        // SAFETY: Python's side took address and length from an object that it keeps alive, and
        // exported or referenced so that it is not moved, until the call or its completion is over.
        // Threads of Python that write there meanwhile race, as they do with any C extension; the
        // bytes have no invalid values.
        unsafe { slice::from_raw_parts(start, self.bytes) }
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        let start = self.address as *mut u8;
        // SAFETY: as for reading; Python's side has checked that the object may be written.
        unsafe { slice::from_raw_parts_mut(start, self.bytes) }
    }
}

/// `Py_buffer` as every CPython since 3.10 has it; the limited interface names it from 3.11 on only.
#[repr(C)]
struct View {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

const PYBUF_SIMPLE: c_int = 0;
const PYBUF_WRITABLE: c_int = 1;

// SAFETY: both are exported by every CPython since 3.0 with these signatures.
unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// The exported memory of an object: contiguous, neither moved nor freed while this lives.
#[pyclass(frozen, module = "tensortier._tensortier")]
struct Buffer {
    /// On the heap, since its exporter may point into it.
    view: Box<View>,
}

// SAFETY: its fields are only read, and what they point to is reached with the interpreter held.
unsafe impl Send for Buffer {}
// SAFETY: as for `Send`.
unsafe impl Sync for Buffer {}

#[pymethods]
impl Buffer {
    #[new]
    fn export(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let mut view = Box::new(View {
            buf: std::ptr::null_mut(),
            obj: std::ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        });
        let flags = if writable { PYBUF_WRITABLE } else { PYBUF_SIMPLE };
        // SAFETY: the object is alive and the interpreter held; the view is written only by this call
        // and stays where it is until it is released.
        let failed = unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) };
        if failed == 0 { Ok(Buffer { view }) } else { Err(PyErr::fetch(object.py())) }
    }

    /// Where the memory is.
    #[getter]
    fn address(&self) -> usize {
        self.view.buf as usize
    }

    /// Its length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.view.len.cast_unsigned()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was filled by a call that succeeded and is released once; Python drops its
        // objects with the interpreter held.
        unsafe { PyBuffer_Release(&raw mut *self.view) }
    }
}
