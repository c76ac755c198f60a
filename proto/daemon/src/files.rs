//! How many files and sockets the process may hold.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to what the system allows this process, and says how many that is, also in the log;
/// `None` is no limit.
/// Shells and systemd give 1024 by default, for the sake of programs that use `select`: a thousand idle connections
/// would then keep everybody else out.
pub fn raise_open_files() -> Option<u64> {
    let open_files = raise();
    tracing::debug!(open_files, "limit of open files");
    open_files
}

fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, ?current, "cannot raise the limit of open files");
            current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_allowed_is_taken() {
        let allowed = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_open_files(), allowed);
        assert_eq!(getrlimit(Resource::Nofile).current, allowed);
    }
}
