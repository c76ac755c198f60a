//! What is followed until Ctrl+C: a gateway that is away for a while, as when it restarts, does not end it.

use super::operation::{pause_after, says_nothing};
use crate::{failure::Outcome, terminal::say};

/// Looks at something over and over.
#[derive(Debug, Default)]
pub struct Following {
    /// Looks in a row that learnt nothing.
    lost: u32,
}

impl Following {
    /// What a look has found. `None`, after a pause that grows up to half a minute, where the gateway did not answer or
    /// had no time: that is said once, and so is its return.
    ///
    /// # Errors
    /// What another look does not mend, such as a refusal.
    pub async fn found<T>(&mut self, look: Outcome<T>) -> Outcome<Option<T>> {
        match look {
            Ok(found) => {
                if std::mem::take(&mut self.lost) > 0 {
                    say("the gateway answers again");
                }
                Ok(Some(found))
            }
            Err(failure) if says_nothing(&failure) => {
                if self.lost == 0 {
                    say(&format!("the gateway does not answer; this goes on when it does: {:#}", failure.error()));
                }
                self.lost = self.lost.saturating_add(1);
                tokio::time::sleep(pause_after(self.lost)).await;
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, time::Duration};

    use anyhow::anyhow;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn d4_a_gateway_that_is_away_ends_nothing_that_is_followed() {
        let mut following = Following::default();
        let begun = tokio::time::Instant::now();
        for _ in 0..20 {
            let lost = Err(std::io::Error::from(ErrorKind::ConnectionRefused).into());
            assert_eq!(following.found::<()>(lost).await.unwrap(), None);
        }
        assert!(begun.elapsed() <= 20 * Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!((following.found(Ok(7)).await.unwrap(), following.lost), (Some(7), 0));
        let refused = following.found::<()>(Err(anyhow!("it is no JSON").into())).await;
        assert!(refused.is_err(), "what another look does not mend");
    }
}
