//! What `towline proxy` serves.
