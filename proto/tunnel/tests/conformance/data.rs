//! Bytes to send and to compare.

use bytes::Bytes;
use tunnel::transport::{RecvStream, StreamError};

/// A small generator (xorshift), so that a failure repeats.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn bytes(&mut self, length: usize) -> Bytes {
        let mut out = Vec::with_capacity(length + 8);
        while out.len() < length {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(length);
        out.into()
    }
}

/// FNV-1a with the length: any lost, doubled or mingled byte shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    hash: u64,
    pub bytes: u64,
}

impl Default for Sum {
    fn default() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, bytes: 0 }
    }
}

impl Sum {
    pub fn add(&mut self, chunk: &[u8]) {
        for byte in chunk {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.bytes += chunk.len() as u64;
    }

    pub fn of(chunk: &[u8]) -> Self {
        let mut sum = Self::default();
        sum.add(chunk);
        sum
    }
}

/// Reads to the end.
pub async fn read_sum(recv: &mut RecvStream) -> Result<Sum, StreamError> {
    let mut sum = Sum::default();
    while let Some(chunk) = recv.recv().await? {
        sum.add(&chunk);
    }
    Ok(sum)
}

/// Reads to the end, keeping the bytes.
pub async fn read_all(recv: &mut RecvStream) -> Result<Vec<u8>, StreamError> {
    let mut out = Vec::new();
    while let Some(chunk) = recv.recv().await? {
        out.extend_from_slice(&chunk);
    }
    Ok(out)
}

/// Counts to the end or the error.
pub async fn count(recv: &mut RecvStream) -> (u64, Option<StreamError>) {
    let mut bytes = 0;
    loop {
        match recv.recv().await {
            Ok(Some(chunk)) => bytes += chunk.len() as u64,
            Ok(None) => return (bytes, None),
            Err(error) => return (bytes, Some(error)),
        }
    }
}
