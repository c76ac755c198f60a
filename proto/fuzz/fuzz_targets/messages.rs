#![no_main]
//! See `proto::wire::fuzz::messages`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| proto::wire::fuzz::messages(data));
