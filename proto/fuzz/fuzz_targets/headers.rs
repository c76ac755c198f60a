#![no_main]
//! See `proto::wire::fuzz::headers`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| proto::wire::fuzz::headers(data));
