#![no_main]
//! See `tunnel::fuzz::messages`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| tunnel::fuzz::messages(data));
