//! That a gateway kept a record of every request of a load: it counts those that it had to drop, and its admin listener
//! tells.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::Context;

use crate::{
    link::{Link, Seat},
    load::Outcome,
    program::output,
};

/// The gateway's own name of it.
const METRIC: &str = "gateway_audit_dropped_total";
/// As in `record::FIGURES`.
const FIGURE: &str = "audit_dropped";
/// The listener answers within this.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the listener is, for the process that can reach it.
#[derive(clap::Args)]
pub struct Args {
    /// Address of the gateway's admin listener.
    admin: SocketAddr,
}

/// Prints how many records the gateway has dropped since it was started.
///
/// # Errors
/// A listener that does not answer, or does not tell.
pub fn main(args: &Args) -> anyhow::Result<()> {
    crate::print::say(&dropped(args.admin)?.to_string());
    Ok(())
}

fn dropped(admin: SocketAddr) -> anyhow::Result<u64> {
    let mut stream =
        TcpStream::connect_timeout(&admin, PATIENCE).with_context(|| format!("cannot connect to {admin}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Of this version the end of the connection is that of the answer.
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let value = text.lines().find_map(|line| line.strip_prefix(METRIC)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).with_context(|| format!("{admin} tells nothing of {METRIC}"))
}

/// The records of one gateway.
pub struct Audit {
    admin: String,
    /// Dropped by gateways that it took the place of.
    ended: u64,
    /// All that were dropped before the load.
    before: u64,
}

impl Audit {
    /// Of a gateway whose admin listener is there.
    pub fn new(admin: &str) -> Self {
        Self { admin: admin.trim_start_matches("http://").to_owned(), ended: 0, before: 0 }
    }

    /// A load begins: what was dropped until now counts for nothing.
    ///
    /// # Errors
    /// The gateway does not tell.
    pub async fn begins(&mut self, link: &Link) -> anyhow::Result<()> {
        self.before = self.all(link).await?;
        Ok(())
    }

    /// The gateway is killed next, and takes its count along.
    ///
    /// # Errors
    /// It does not tell.
    pub async fn ends(&mut self, link: &Link) -> anyhow::Result<()> {
        self.ended += self.now(link).await?;
        Ok(())
    }

    /// Says in an outcome what was dropped since the load began; a request without a record has failed.
    ///
    /// # Errors
    /// The gateway does not tell.
    pub async fn tell(&self, link: &Link, outcome: &mut Outcome) -> anyhow::Result<()> {
        note(outcome, self.all(link).await?.saturating_sub(self.before));
        Ok(())
    }

    async fn all(&self, link: &Link) -> anyhow::Result<u64> {
        Ok(self.ended + self.now(link).await?)
    }

    async fn now(&self, link: &Link) -> anyhow::Result<u64> {
        let mut command = link.command(Seat::Outer, &std::env::current_exe()?);
        command.args(["audit", &self.admin]);
        Ok(output(command, b"").await?.trim().parse()?)
    }
}

fn note(outcome: &mut Outcome, dropped: u64) {
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 records")]
    outcome.extra.insert(FIGURE.to_owned(), dropped as f64);
    if dropped > 0 {
        outcome.failed += dropped;
        outcome.errors.insert("audit records that the gateway dropped".to_owned(), dropped);
    }
}

#[cfg(test)]
mod tests {
    use std::{io::BufRead, net::TcpListener};

    use super::*;
    use crate::record;

    /// What is read of a listener that answers with this.
    fn read(answer: &'static str) -> anyhow::Result<u64> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serves = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let asked = std::io::BufReader::new(&stream).lines().map_while(Result::ok).take_while(|l| !l.is_empty());
            assert_eq!(asked.collect::<Vec<_>>(), ["GET /metrics HTTP/1.0"]);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let read = dropped(address);
        serves.join().unwrap();
        read
    }

    #[test]
    fn the_count_is_read_among_other_metrics_and_its_absence_is_an_error() {
        let metrics = "HTTP/1.0 200 OK\r\n\r\n# HELP gateway_audit_dropped_total x\n# TYPE gateway_audit_dropped_total counter\n\
                       gateway_audit_dropped_total_other 4\ngateway_audit_dropped_total 7\n";
        assert_eq!(read(metrics).unwrap(), 7);
        let error = read("HTTP/1.0 403 Forbidden\r\n\r\nnot for browsers\n").unwrap_err().to_string();
        assert!(error.ends_with("tells nothing of gateway_audit_dropped_total"), "{error}");
    }

    #[test]
    fn a_request_without_a_record_has_failed() {
        let mut outcome = Outcome { requests: 5, ..Outcome::default() };
        note(&mut outcome, 0);
        assert_eq!((outcome.all_failed(), outcome.errors.len(), outcome.extra[FIGURE]), (0, 0, 0.0));
        note(&mut outcome, 3);
        assert_eq!((outcome.all_failed(), outcome.errors.len(), outcome.extra[FIGURE]), (3, 1, 3.0));
        assert!(record::figure(FIGURE).is_some());
    }
}
