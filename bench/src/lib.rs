//! Measurements. So far the micro benches in `benches/`.
