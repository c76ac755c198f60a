#![no_main]
//! See `tunnel::fuzz::decode`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| tunnel::fuzz::decode(data));
