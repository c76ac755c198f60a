//! Which of the three programs this is: `towline`, `towline-gateway` and `towline-agent` are one file, told apart by
//! the name that it is called by.

use std::{ffi::OsString, path::Path};

/// What the one file is, by the name that it is called by.
#[derive(Debug, PartialEq, Eq)]
pub enum Program {
    /// `towline`, the command.
    Command,
    /// `towline-gateway`, the gateway.
    Gateway,
    /// `towline-agent`, the agent.
    Agent,
}

impl Program {
    /// Also where something is appended to the name, such as a version.
    pub fn of(called: Option<OsString>) -> Self {
        let called = called.unwrap_or_default();
        let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("towline-gateway") {
            Self::Gateway
        } else if name.starts_with("towline-agent") {
            Self::Agent
        } else {
            Self::Command
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_it_is_called_by_says_what_it_is() {
        for (called, program) in [
            ("towline", Program::Command),
            ("/usr/local/bin/towline", Program::Command),
            ("/srv/towline-agent/towline", Program::Command),
            ("towline-gateway", Program::Gateway),
            ("/usr/local/bin/towline-gateway", Program::Gateway),
            ("./towline-gateway-0.1.0", Program::Gateway),
            ("/towline-agent", Program::Agent),
            ("", Program::Command),
        ] {
            assert_eq!(Program::of(Some(called.into())), program, "{called}");
        }
        assert_eq!(Program::of(None), Program::Command);
    }
}
