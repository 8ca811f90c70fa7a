//! Every hostile or broken tensor file we know of, built byte by byte, and the line each one gets.

use std::path::Path;

use super::header::{MAX_HEADER_BYTES, parse_header};
use super::{Access, TensorFile};

/// A file with this header text and this many bytes of tensors.
fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

fn tensor(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

fn one(dtype: &str, shape: &str, offsets: &str, data_bytes: usize) -> Vec<u8> {
    file(&format!(r#"{{"w":{}}}"#, tensor(dtype, shape, offsets)), data_bytes)
}

fn two(first: &str, second: &str, data_bytes: usize) -> Vec<u8> {
    let tensor = |offsets| tensor("U8", "[4]", offsets);
    file(&format!(r#"{{"a":{},"b":{}}}"#, tensor(first), tensor(second)), data_bytes)
}

fn refusal(bytes: &[u8]) -> String {
    let error = parse_header(Path::new("f"), bytes, bytes.len() as u64).unwrap_err().to_string();
    assert!(error.starts_with("f: ") && !error.contains('\n') && error.len() < 500, "{error}");
    error
}

#[track_caller]
fn refused(bytes: &[u8], line: &str) {
    let error = refusal(bytes);
    assert!(error.contains(line), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hostile.safetensors");
    std::fs::write(&path, bytes).unwrap();
    for access in [Access::Direct, Access::Map] {
        let error = TensorFile::open(&path, access).unwrap_err().to_string();
        assert!(error.contains(line) && error.contains("hostile.safetensors"), "{error}");
    }
}

#[test]
fn lengths_that_lie() {
    refused(b"", "has 0 bytes, too few for a safetensors header");
    refused(b"\x02\0\0", "has 3 bytes, too few");
    refused(&100u64.to_le_bytes(), "claims a header of 100 bytes, longer than the file (8 bytes)");
    refused(&u64::MAX.to_le_bytes(), "claims a header of 18446744073709551615 bytes, more than");
    let over = MAX_HEADER_BYTES + 1;
    refused(&over.to_le_bytes(), "claims a header of 100000001 bytes, more than the 100000000");
    refused(b"PK\x03\x04\0\0\0\0rest of an archive", "longer than the file");
}

#[test]
fn headers_that_are_no_header() {
    refused(&file("", 0), "has a bad header");
    refused(&file("[]", 0), "expected a JSON object of tensors");
    refused(&file("{} x", 0), "trailing characters");
    refused(&file(r#"{"a":"#, 0), "has a bad header");
    refused(&file(r#"{"w":7}"#, 0), "\"w\": invalid type");
    refused(&file(r#"{"w":{"dtype":"U8","shape":[]}}"#, 0), "missing field `data_offsets`");
    refused(&file(&"[".repeat(100_000), 0), "has a bad header");
    refused(&file(&format!(r#"{{"a":{}"#, "[".repeat(100_000)), 0), "has a bad header");
    refused(b"\x02\0\0\0\0\0\0\0\xff\xfe", "not UTF-8 (byte 0)");
    refused(&file(r#"{"__metadata__":{"a":1}}"#, 0), "\"__metadata__\": invalid type");
}

#[test]
fn names_given_twice() {
    let tensor = tensor("U8", "[0]", "[0,0]");
    refused(&file(&format!(r#"{{"w":{tensor},"w":{tensor}}}"#), 0), "\"w\" is named twice");
    refused(&file(&format!(r#"{{"w":{tensor},"\u0077":{tensor}}}"#), 0), "\"w\" is named twice");
    refused(&file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), "named twice");
    let field = r#"{"w":{"dtype":"U8","dtype":"I8","shape":[],"data_offsets":[0,1]}}"#;
    refused(&file(field, 1), "duplicate field `dtype`");
}

#[test]
fn offsets_that_lie() {
    refused(&two("[0,4]", "[2,6]", 6), "tensors \"a\" and \"b\" overlap by 2 bytes");
    refused(&two("[0,4]", "[0,4]", 4), "tensors \"a\" and \"b\" overlap by 4 bytes");
    refused(&two("[0,4]", "[5,9]", 9), "a hole of 1 bytes before tensor \"b\"");
    refused(&two("[1,5]", "[5,9]", 9), "a hole of 1 bytes before tensor \"a\"");
    refused(&two("[0,4]", "[4,8]", 9), "has 1 B after its last tensor");
    refused(&file("{}", 3), "has 3 B after its last tensor");
    refused(&two("[0,4]", "[4,8]", 7), "tensor \"b\" ends at byte");
    refused(&one("U8", "[4]", "[4,0]", 4), "tensor \"w\" ends at 0, before its start 4");
    let far = "[18446744073709551611,18446744073709551615]";
    refused(&one("U8", "[4]", far, 4), "tensor \"w\" has offsets that overflow");
    refused(&one("U8", "[4]", "[0,18446744073709551616]", 4), "has a bad header");
    refused(&one("U8", "[4]", "[0,4,8]", 4), "has a bad header");
    refused(&one("U8", "[4]", "[-4,0]", 4), "has a bad header");
    refused(&one("U8", "[4]", "[0,4.0]", 4), "has a bad header");
}

#[test]
fn shapes_that_lie() {
    refused(&one("F32", "[3]", "[0,4]", 4), "(F32, shape [3]) needs 12 bytes but has 4");
    refused(&one("F32", "[]", "[0,0]", 0), "needs 4 bytes but has 0");
    refused(&one("F32", "[0]", "[0,4]", 4), "needs 0 bytes but has 4");
    let huge = "[4294967296,4294967296]";
    refused(&one("F32", huge, "[0,0]", 0), "tensor \"w\" has a shape whose size overflows");
    refused(&one("F64", "[2305843009213693952]", "[0,0]", 0), "size overflows");
    let deep = format!("[{}1]", "1,".repeat(5000));
    refused(&one("U8", &deep, "[0,2]", 2), "(U8, shape of 5001 dimensions) needs 1 bytes");
}

#[test]
fn types_that_are_unknown_or_not_whole_bytes() {
    refused(&one("F99", "[1]", "[0,4]", 4), "tensor \"w\" has the unknown type \"F99\"");
    refused(&one("f32", "[1]", "[0,4]", 4), "unknown type \"f32\"");
    refused(&one("F4", "[2]", "[0,1]", 1), "has the type F4, whose elements are 4 bits");
    refused(&one("F6_E2M3", "[4]", "[0,3]", 3), "whose elements are 6 bits");
    refused(&one("F6_E3M2", "[4]", "[0,3]", 3), "types below a byte are not supported");
    refused(&one("C64", "[1]", "[0,8]", 8), "has the type C64, which is not supported");
}

#[test]
fn names_cannot_break_the_line() {
    let long = "x".repeat(70_000);
    let header = format!(r#"{{"{long}":{}}}"#, tensor("U8", "[2]", "[0,1]"));
    refused(&file(&header, 1), "... (70000 bytes)");
    let header = format!(r#"{{"a\n\u001b[2Jb":{}}}"#, tensor("U8", "[2]", "[0,1]"));
    refused(&file(&header, 1), r#"tensor "a\n\u{1b}[2Jb""#);
    refused(&file("{\"a\nb\":1}", 0), "control character");
}

#[test]
fn odd_but_valid_files_are_taken() {
    let taken = |bytes: Vec<u8>| {
        safetensors::SafeTensors::deserialize(&bytes).unwrap();
        parse_header(Path::new("f"), &bytes, bytes.len() as u64).unwrap()
    };
    assert!(taken(file("{}", 0)).entries.is_empty());
    assert!(taken(file("  {} \n", 0)).entries.is_empty());
    assert_eq!(taken(file(r#"{"__metadata__":{"a":"b"}}"#, 0)).metadata["a"], "b");
    let entries = taken(two("[4,8]", "[0,4]", 8)).entries;
    assert_eq!([&entries[0].name, &entries[1].name], ["b", "a"]);
    let scalar = taken(one("F64", "[]", "[0,8]", 8)).entries;
    assert_eq!((scalar[0].elements(), scalar[0].bytes()), (1, 8));
    assert_eq!(taken(one("F32", "[3,0,5]", "[0,0]", 0)).entries[0].elements(), 0);
    for dtype in ["F8_E4M3", "F8_E5M2", "BOOL", "U8", "I8"] {
        assert_eq!(taken(one(dtype, "[3]", "[0,3]", 3)).entries[0].bytes(), 3);
    }
}

#[test]
fn every_truncation_of_a_good_file_is_refused() {
    let whole = two("[0,4]", "[4,8]", 8);
    for cut in 0..whole.len() {
        refusal(&whole[..cut]);
    }
    let mut longer = whole.clone();
    longer.push(0);
    refusal(&longer);
    assert!(parse_header(Path::new("f"), &whole, whole.len() as u64).is_ok());
}
