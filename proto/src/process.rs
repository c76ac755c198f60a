//! What both programs need to be a process: signals, shutdown, task groups, telemetry, backoff.
