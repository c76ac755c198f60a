#![no_main]
//! See `proto::wire::fuzz::ids`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| proto::wire::fuzz::ids(data));
