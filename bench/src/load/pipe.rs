//! A connection that is HTTP no more, as that of an exec or a port-forward: what is sent comes back.

use anyhow::{Context, ensure};
use http::{Response, StatusCode};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::meter::Meter;

/// What is written at once.
const CHUNK: u64 = 64 << 10;

/// An upgraded connection, which carries bytes in both directions.
pub struct Pipe(TokioIo<Upgraded>);

impl Pipe {
    /// Of the answer to a request for one.
    ///
    /// # Errors
    /// An answer that changes no protocol.
    pub async fn new(answer: Response<Incoming>) -> anyhow::Result<Self> {
        let status = answer.status();
        ensure!(status == StatusCode::SWITCHING_PROTOCOLS, "status {} to an upgrade", status.as_u16());
        Ok(Self(TokioIo::new(hyper::upgrade::on(answer).await.context("upgrade")?)))
    }

    /// Sends `bytes`, and meanwhile reads as many back.
    ///
    /// # Errors
    /// It broke off, or other bytes came.
    pub async fn echo(&mut self, bytes: u64, meter: &Meter) -> anyhow::Result<u64> {
        let size = usize::try_from(bytes.min(CHUNK))?;
        // What is left of an earlier message is told from this one.
        let (sent, mut came) = (vec![fastrand::u8(..); size], vec![0; size]);
        let (mut reader, mut writer) = tokio::io::split(&mut self.0);
        let write = async {
            let mut left = bytes;
            while left > 0 {
                let part = size.min(usize::try_from(left)?);
                writer.write_all(&sent[..part]).await.context("write")?;
                left -= part as u64;
            }
            writer.flush().await.context("write")
        };
        let read = async {
            let mut left = bytes;
            while left > 0 {
                let part = size.min(usize::try_from(left)?);
                let read = reader.read(&mut came[..part]).await.context("read")?;
                ensure!(read > 0, "ended with {left} of {bytes} bytes missing");
                ensure!(came[..read] == sent[..read], "other bytes came back");
                meter.reads(read as u64);
                left -= read as u64;
            }
            Ok(())
        };
        tokio::try_join!(write, read)?;
        Ok(bytes)
    }
}
