//! Shows a failed command to its user: the error with all its causes, and what to type next. A failure without advice
//! gets that of the server that refused: only here are those errors known that have some.

use std::process::ExitCode;

use daemon::{chain, stdout::UNREAD};

use crate::{
    api::ApiError,
    failure::{FAILED, Failure, INTERRUPTED},
    kubernetes,
    terminal::say,
};

/// Prints a failure to standard error.
pub fn report(failure: &Failure) -> ExitCode {
    let code = ExitCode::from(failure.code());
    if [UNREAD, INTERRUPTED].contains(&failure.code()) {
        return code;
    }
    say(&format!("error: {}", chain(failure.error().as_ref())));
    if let Some(hint) = failure.advice().map(str::to_owned).or_else(|| of_server(failure)) {
        say(&format!("hint: {hint}"));
    }
    code
}

/// Also of a server's refusal that has got a context. What was typed wrongly was refused by no server.
fn of_server(failure: &Failure) -> Option<String> {
    let error = Some(failure.error()).filter(|_| failure.code() == FAILED)?;
    let api = error.downcast_ref().and_then(ApiError::hint);
    api.or_else(|| error.downcast_ref().and_then(kubernetes::Error::hint))
}
