//! Every bound, by name. Each is checked before the work that it bounds.

/// Bytes of an index: about 5,000 versions of charts.
pub const INDEX_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a file of signatures.
pub const SIGNATURE_BYTES: usize = 16 * 1024;
/// Bytes of a key's file.
pub const KEY_FILE_BYTES: usize = 16 * 1024;
/// Keys that may sign, and signatures of one index.
pub const KEYS: usize = 16;
/// Extension types of a catalogue.
pub const TYPES: usize = 1000;
/// Versions of one extension type.
pub const VERSIONS: usize = 1000;
/// Entries of every other list of an index.
pub const LIST: usize = 64;
/// Rules on settings of one extension type, and values of one rule.
pub const SETTINGS: usize = 256;
/// Characters of a description.
pub const DESCRIPTION_CHARS: usize = 1000;
/// Characters of every other text of an index.
pub const TEXT_CHARS: usize = 200;
/// Characters of a version.
pub const VERSION_CHARS: usize = 64;
/// Characters of a version constraint.
pub const RANGE_CHARS: usize = 256;
/// Comparisons in a version constraint.
pub const COMPARISONS: usize = 32;

/// Bytes of a chart's archive.
pub const ARCHIVE_BYTES: u64 = 20 * 1024 * 1024;
/// Bytes that a chart unpacks to, archives in it included. helm's own bound is 100 MiB.
pub const UNPACKED_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes of one file in a chart, as in helm 3.
pub const FILE_BYTES: u64 = 5 * 1024 * 1024;
/// Files and folders in a chart, archives in it included.
pub const ENTRIES: usize = 10_000;
/// Bytes of the PAX records of an entry, as in the reader of Go.
pub const PAX_BYTES: usize = 1024 * 1024;
/// PAX records of an entry: a writer makes a dozen.
pub const PAX_RECORDS: usize = 1000;
/// Bytes of a path in a chart.
pub const PATH_BYTES: usize = 512;
/// Charts in each other.
pub const CHART_DEPTH: usize = 5;
/// Bytes of a `Chart.yaml`.
pub const METADATA_BYTES: u64 = 256 * 1024;
/// Dependencies of one chart.
pub const DEPENDENCIES: usize = 256;
