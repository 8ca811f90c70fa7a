//! The header of a safetensors file, parsed and checked from bytes that nobody has vouched for.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::units::Bytes;

/// The longest header that is read, as the format's own library has it.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The length field in front of the header.
pub(super) const LENGTH_BYTES: u64 = 8;

/// The header's key that is not a tensor.
pub(super) const METADATA_KEY: &str = "__metadata__";

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name; any text.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Its bytes, counted from the start of the file.
    pub range: Range<u64>,
}

impl TensorEntry {
    /// Returns the number of elements: 1 for a scalar, 0 if any dimension is 0.
    pub fn elements(&self) -> u64 {
        self.bytes() / self.dtype.bytes()
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A checked header: the tensors cover the file from the header's end to its own without a hole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// The tensors in the order in which they lie in the file.
    pub entries: Vec<TensorEntry>,
    /// Free text about the file.
    pub metadata: BTreeMap<String, String>,
}

/// Returns how many bytes the length field and the header take together, from the first bytes of a
/// file of `file_bytes`. Nothing needs to be allocated before this is known.
///
/// # Errors
/// [`Error::BadFile`] if the file is too short or the header longer than the file or the cap.
pub fn header_bytes(file: &Path, start: &[u8], file_bytes: u64) -> Result<u64> {
    measure(start, file_bytes).map_err(|why| refuse(file, why))
}

/// Parses and checks a header. `start` holds at least as many bytes of the file's start as
/// [`header_bytes`] says; `file_bytes` is the length of the whole file.
///
/// # Errors
/// [`Error::BadFile`] names the tensor, what is wrong with it and what to do.
pub fn parse_header(file: &Path, start: &[u8], file_bytes: u64) -> Result<Header> {
    parse(start, file_bytes).map_err(|why| refuse(file, why))
}

fn refuse(file: &Path, why: String) -> Error {
    Error::BadFile { file: file.to_owned(), why, source: None }
}

fn measure(start: &[u8], file_bytes: u64) -> Result<u64, String> {
    let Some(field) = start.first_chunk::<8>().filter(|_| file_bytes >= LENGTH_BYTES) else {
        return Err(format!(
            "has {file_bytes} bytes, too few for a safetensors header; fetch the file again"
        ));
    };
    let header = u64::from_le_bytes(*field);
    if header > MAX_HEADER_BYTES {
        return Err(format!(
            "claims a header of {header} bytes, more than the {MAX_HEADER_BYTES} allowed; this is \
             no safetensors file"
        ));
    }
    let end = LENGTH_BYTES + header;
    if end > file_bytes {
        return Err(format!(
            "claims a header of {header} bytes, longer than the file ({file_bytes} bytes); the \
             file is truncated or no safetensors file, fetch it again"
        ));
    }
    Ok(end)
}

fn parse(start: &[u8], file_bytes: u64) -> Result<Header, String> {
    let end = measure(start, file_bytes)?;
    let text = usize::try_from(end)
        .ok()
        .and_then(|end| start.get(LENGTH_BYTES as usize..end))
        .ok_or_else(|| format!("only {} of {end} header bytes were read", start.len()))?;
    let text = std::str::from_utf8(text).map_err(|error| {
        format!(
            "has a header that is not UTF-8 (byte {}); this is no safetensors file",
            error.valid_up_to()
        )
    })?;
    let raw: RawHeader = serde_json::from_str(text).map_err(|error| {
        format!("has a bad header: {}; write the file again", one_line(&error.to_string()))
    })?;
    let mut entries = Vec::with_capacity(raw.tensors.len());
    for (name, tensor) in raw.tensors {
        entries.push(check_tensor(name, &tensor, end, file_bytes)?);
    }
    // Empty tensors share an offset with their neighbours; the sort is stable for them.
    entries.sort_by_key(|entry| (entry.range.start, entry.range.end));
    check_cover(&entries, end, file_bytes)?;
    Ok(Header { entries, metadata: raw.metadata })
}

/// Checks what can be said of one tensor alone: its type, and that its range is its shape's size.
fn check_tensor(
    name: String,
    tensor: &RawTensor,
    data_start: u64,
    file_bytes: u64,
) -> Result<TensorEntry, String> {
    let shown = quote(&name);
    let dtype = read_dtype(&shown, &tensor.dtype)?;
    let (start, end) = tensor.data_offsets;
    let shape = &tensor.shape;
    let wanted = shape
        .iter()
        .try_fold(1u64, |product, dim| product.checked_mul(*dim))
        .and_then(|elements| elements.checked_mul(dtype.bytes()))
        .ok_or_else(|| {
            format!("tensor {shown} has a shape whose size overflows; write the file again")
        })?;
    let length = end.checked_sub(start).ok_or_else(|| {
        format!("tensor {shown} ends at {end}, before its start {start}; write the file again")
    })?;
    if length != wanted {
        return Err(format!(
            "tensor {shown} ({dtype}, shape {}) needs {wanted} bytes but has {length}; write the \
             file again",
            show_shape(shape)
        ));
    }
    let range = data_start
        .checked_add(end)
        .map(|range_end| data_start + start..range_end)
        .ok_or_else(|| format!("tensor {shown} has offsets that overflow; write the file again"))?;
    if range.end > file_bytes {
        return Err(format!(
            "tensor {shown} ends at byte {} but the file has {file_bytes}; the file is truncated, \
             fetch it again",
            range.end
        ));
    }
    Ok(TensorEntry { name, dtype, shape: shape.clone(), range })
}

/// Checks that sorted tensors follow one another from the header's end to the file's.
fn check_cover(entries: &[TensorEntry], data_start: u64, file_bytes: u64) -> Result<(), String> {
    let mut covered = data_start;
    let mut last: Option<&TensorEntry> = None;
    for entry in entries {
        let start = entry.range.start;
        if start < covered {
            let other = last.map_or_else(String::new, |last| quote(&last.name));
            return Err(format!(
                "tensors {other} and {} overlap by {} bytes; write the file again",
                quote(&entry.name),
                covered - start
            ));
        }
        if start > covered {
            return Err(format!(
                "there is a hole of {} bytes before tensor {}; write the file again",
                start - covered,
                quote(&entry.name)
            ));
        }
        covered = entry.range.end;
        last = Some(entry);
    }
    if covered == file_bytes {
        return Ok(());
    }
    Err(format!(
        "has {} after its last tensor; fetch or write the file again",
        Bytes(file_bytes - covered)
    ))
}

/// Reads a type name. The format's own library says which names exist; the store takes those whose
/// elements are whole bytes.
fn read_dtype(shown: &str, text: &str) -> Result<DType, String> {
    use safetensors::Dtype as Named;
    let named: StrDeserializer<'_, serde::de::value::Error> = StrDeserializer::new(text);
    let Ok(named) = Named::deserialize(named) else {
        return Err(format!(
            "tensor {shown} has the unknown type {}; convert it to a type of the safetensors \
             format",
            quote(text)
        ));
    };
    Ok(match named {
        Named::BOOL => DType::Bool,
        Named::U8 => DType::U8,
        Named::I8 => DType::I8,
        Named::F8_E4M3 => DType::F8E4M3,
        Named::F8_E5M2 => DType::F8E5M2,
        Named::U16 => DType::U16,
        Named::I16 => DType::I16,
        Named::F16 => DType::F16,
        Named::BF16 => DType::BF16,
        Named::U32 => DType::U32,
        Named::I32 => DType::I32,
        Named::F32 => DType::F32,
        Named::U64 => DType::U64,
        Named::I64 => DType::I64,
        Named::F64 => DType::F64,
        other if other.bitsize() % 8 != 0 => {
            return Err(format!(
                "tensor {shown} has the type {other}, whose elements are {} bits; types below a \
                 byte are not supported, convert it to F16, BF16 or F32",
                other.bitsize()
            ));
        }
        other => {
            return Err(format!(
                "tensor {shown} has the type {other}, which is not supported; convert it to F16, \
                 BF16 or F32"
            ));
        }
    })
}

/// Quotes a name from a file: one line, and not a page of it.
pub(super) fn quote(name: &str) -> String {
    const SHOWN: usize = 80;
    match name.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{:?}... ({} bytes)", &name[..cut], name.len()),
        None => format!("{name:?}"),
    }
}

fn show_shape(shape: &[u64]) -> String {
    const SHOWN: usize = 8;
    if shape.len() > SHOWN {
        return format!("of {} dimensions", shape.len());
    }
    format!("{shape:?}")
}

/// Keeps a foreign message on one line and short, whatever the file put into it.
fn one_line(text: &str) -> String {
    const SHOWN: usize = 200;
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

/// A tensor as the header words it.
#[derive(Debug, Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's JSON object in its own order, so that a name given twice is seen: a map would keep
/// the last one silently.
#[derive(Debug)]
struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader { tensors: Vec::new(), metadata: BTreeMap::new() };
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("{} is named twice", quote(&name))));
            }
            let named = |error: A::Error| A::Error::custom(format!("{}: {error}", quote(&name)));
            if name == METADATA_KEY {
                header.metadata = map.next_value::<Option<_>>().map_err(named)?.unwrap_or_default();
            } else {
                let tensor = map.next_value().map_err(named)?;
                header.tensors.push((name, tensor));
            }
        }
        Ok(header)
    }
}
