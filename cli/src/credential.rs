//! Where a user's token comes from, and how kubectl gets it.

mod exec;
mod source;

pub use self::{
    exec::{ExecVersion, exec_credential},
    source::{SignIn, Source},
};
