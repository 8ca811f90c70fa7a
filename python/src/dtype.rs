//! Names of element types, as torch and numpy have them, and their codes in DLPack.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tensortier::storage::dtype::DType;

/// Type, its name in torch and numpy, and its code in DLPack.
const TYPES: [(DType, &str, u8); 15] = [
    (DType::Bool, "bool", 6),
    (DType::U8, "uint8", 1),
    (DType::I8, "int8", 0),
    (DType::F8E4M3, "float8_e4m3fn", 10),
    (DType::F8E5M2, "float8_e5m2", 12),
    (DType::U16, "uint16", 1),
    (DType::I16, "int16", 0),
    (DType::F16, "float16", 2),
    (DType::BF16, "bfloat16", 4),
    (DType::U32, "uint32", 1),
    (DType::I32, "int32", 0),
    (DType::F32, "float32", 2),
    (DType::U64, "uint64", 1),
    (DType::I64, "int64", 0),
    (DType::F64, "float64", 2),
];

/// Names that people also use.
const ALIASES: [(&str, &str); 16] = [
    ("u8", "uint8"),
    ("i8", "int8"),
    ("f8_e4m3", "float8_e4m3fn"),
    ("f8_e5m2", "float8_e5m2"),
    ("u16", "uint16"),
    ("i16", "int16"),
    ("f16", "float16"),
    ("half", "float16"),
    ("bf16", "bfloat16"),
    ("u32", "uint32"),
    ("i32", "int32"),
    ("f32", "float32"),
    ("u64", "uint64"),
    ("i64", "int64"),
    ("f64", "float64"),
    ("double", "float64"),
];

/// An element type that Python names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Element(pub(crate) DType);

impl Element {
    /// Returns the type's name in torch and numpy.
    pub(crate) fn name(self) -> &'static str {
        TYPES.iter().find(|(dtype, ..)| *dtype == self.0).map_or("unknown", |(_, name, _)| name)
    }

    /// Returns the type's code and width in bits, as DLPack counts them.
    pub(crate) fn dlpack(self) -> (u8, u8) {
        let code = TYPES.iter().find(|(dtype, ..)| *dtype == self.0).map_or(1, |(.., code)| *code);
        (code, (self.0.bytes() * 8) as u8)
    }

    /// Returns the type of a code and a width in bits of DLPack, if it is one of ours.
    pub(crate) fn of_dlpack(code: u8, bits: u8) -> Option<Element> {
        let is_it = |(dtype, _, known): &&(DType, &str, u8)| {
            *known == code && dtype.bytes() * 8 == u64::from(bits)
        };
        TYPES.iter().find(is_it).map(|(dtype, ..)| Element(*dtype))
    }

    fn of_name(name: &str) -> Option<Element> {
        let name = name.to_ascii_lowercase();
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, name)| *name);
        let name = alias.unwrap_or(&name);
        TYPES.iter().find(|(_, known, _)| *known == name).map(|(dtype, ..)| Element(*dtype))
    }
}

impl<'py> FromPyObject<'_, 'py> for Element {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let name: String = object.extract()?;
        Element::of_name(&name).ok_or_else(|| {
            let known: Vec<_> = TYPES.iter().map(|(_, name, _)| *name).collect();
            PyTypeError::new_err(format!(
                "no element type {name:?}; known are {}; view other types as one of them, such as \
                 complex64 as float32",
                known.join(", ")
            ))
        })
    }
}

/// Returns a type's name in torch and numpy, and its width in bytes.
///
/// # Errors
/// `TypeError` for a name that is not known.
#[pyfunction]
pub(crate) fn dtype_named(element: Element) -> (&'static str, u64) {
    (element.name(), element.0.bytes())
}
