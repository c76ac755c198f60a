//! The signed catalogue of helm charts.
