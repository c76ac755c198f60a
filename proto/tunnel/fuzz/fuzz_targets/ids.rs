#![no_main]
//! See `tunnel::fuzz::ids`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| tunnel::fuzz::ids(data));
