#![no_main]
//! See `proto::wire::fuzz::websocket`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| proto::wire::fuzz::websocket(data));
