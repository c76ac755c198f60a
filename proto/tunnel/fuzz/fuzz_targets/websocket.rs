#![no_main]
//! See `tunnel::fuzz::websocket`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| tunnel::fuzz::websocket(data));
