//! Any bytes as a safetensors file: no panic, and whatever is taken the format's own library takes
//! alike, with the same tensors in the same places.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;
use tensortier_storage::source::parse_header;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // The length field stops most mutations, so also take the bytes before the first NUL as the
    // header of a file and those after it as its tensors.
    let (header, tensors) = match bytes.iter().position(|byte| *byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[][..]),
    };
    check(&[&(header.len() as u64).to_le_bytes()[..], header, tensors].concat());
});

fn check(file: &[u8]) {
    let ours = match parse_header(Path::new("f"), file, file.len() as u64) {
        Ok(header) => header,
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 1000, "{line}");
            return;
        }
    };
    let theirs = SafeTensors::deserialize(file).expect("what we take is valid");
    assert_eq!(ours.entries.len(), theirs.len());
    for entry in &ours.entries {
        let view = theirs.tensor(&entry.name).expect("every tensor of ours is one of theirs");
        let range = entry.range.start as usize..entry.range.end as usize;
        assert_eq!(view.dtype().to_string(), entry.dtype.to_string());
        assert_eq!(view.data().len() as u64, entry.bytes());
        assert_eq!(view.data().as_ptr(), file[range].as_ptr());
        assert!(view.shape().iter().map(|dim| *dim as u64).eq(entry.shape.iter().copied()));
    }
}
