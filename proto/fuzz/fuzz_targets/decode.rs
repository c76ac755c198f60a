#![no_main]
//! See `proto::wire::fuzz::decode`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| proto::wire::fuzz::decode(data));
