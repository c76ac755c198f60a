//! What of the settings takes effect while the agent runs: the outbound proxy. The file, and the files of
//! the proxy's user name and password, are looked at again and again, so that nobody has to say so: what is mounted
//! from a ConfigMap or a Secret changes by itself.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{chain, config::Config, tunnel::connect::Connector};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Follows the proxy's settings.
pub struct Reload {
    /// The settings' file.
    file: PathBuf,
    connector: Arc<Connector>,
    /// What was wrong at the last look: said once.
    fault: Option<String>,
}

impl Reload {
    /// Nothing is read yet: `connector` has what the file said at the start.
    pub fn new(file: PathBuf, connector: Arc<Connector>) -> Self {
        Self { file, connector, fault: None }
    }

    /// Follows for ever.
    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.look();
        }
    }

    /// Looks once. A file that cannot be used changes nothing, and is said once.
    pub fn look(&mut self) {
        let fault = match Config::load(&self.file) {
            Ok(config) => match self.connector.go_by(config.proxy.as_ref()) {
                Ok(true) => {
                    let proxy = config.proxy.map(|proxy| format!("{}:{}", proxy.host, proxy.port));
                    tracing::info!(proxy, "the outbound proxy's settings changed: dialling anew by them");
                    None
                }
                Ok(false) => None,
                Err(err) => Some(format!("[proxy]: {}", chain(&err))),
            },
            Err(err) => Some(chain(&err)),
        };
        if fault.is_some() && fault != self.fault {
            tracing::warn!(error = fault, "the settings were changed and cannot be used: those from before stay");
        }
        self.fault = fault;
    }
}
