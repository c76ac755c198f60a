#![no_main]
//! See `tunnel::fuzz::headers`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| tunnel::fuzz::headers(data));
