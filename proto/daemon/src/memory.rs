//! How much memory this process may have.

use std::fs;

/// Where the kernel says it, of its control groups' second version and of the first, as a process in a container sees
/// its own.
const FILES: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
/// The first version's number for no limit is near the largest that there is.
const NO_LIMIT_FROM: u64 = 1 << 60;

/// The limit of the control group, such as a container's, in bytes. `None`: there is none, or the system does not say.
pub fn limit() -> Option<u64> {
    FILES.iter().find_map(|file| read(&fs::read_to_string(file).ok()?))
}

fn read(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT_FROM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_and_none_is_none() {
        assert_eq!(read("536870912\n"), Some(512 << 20));
        assert_eq!(read("max\n"), None);
        assert_eq!(read("9223372036854771712\n"), None, "as the first version says it");
    }
}
