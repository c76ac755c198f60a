//! Hello, stream identity, credit, stop, probes and drain: the same code over every carrier.
