//! An apiserver that speaks HTTP/2 frame by frame, so that a test can end streams and connections in ways that no
//! library does. It keeps a request's body only where the script has it processed.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use agent::roles::kube_aad_proxy::dial::access::Access;
use certs::Roots;
use daemon::TaskGroup;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use crate::apiserver::{access, listen};

pub const NO_ERROR: u32 = 0;
pub const INTERNAL_ERROR: u32 = 2;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;
/// The last stream of a GOAWAY that ends none.
pub const ALL: u32 = (1 << 31) - 1;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// What happens when the head of a connection's `count`th request has come, from 1 on.
#[derive(Clone, Copy)]
pub enum Act {
    /// It is processed and answered.
    Process,
    /// Its frames are dropped.
    Ignore,
    /// The stream is reset with this code, unprocessed or not.
    Reset(u32),
    /// GOAWAY with this code: streams of more than so many requests of this connection are not processed.
    GoAway(u32, u32),
    /// The same, behind a GOAWAY that names no stream.
    GoAwayTwice(u32, u32),
    /// The same once so many bytes of its body have come.
    GoAwayWithin(usize),
    /// The connection ends without a word.
    Break,
}

/// A request that was processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processed {
    pub connection: usize,
    pub body: Vec<u8>,
}

#[derive(Default)]
pub struct Seen {
    pub heads: usize,
    pub processed: Vec<Processed>,
}

pub struct Frames {
    pub seen: Arc<Mutex<Seen>>,
    address: SocketAddr,
    roots: Roots,
    _tasks: TaskGroup,
}

impl Frames {
    /// `script` is asked with the number of the connection, from 0 on, and of the request on it, from 1 on.
    pub async fn start(script: impl Fn(usize, u32) -> Act + Send + Sync + 'static) -> Self {
        let (script, seen) = (Arc::new(script), Arc::<Mutex<Seen>>::default());
        let records = seen.clone();
        let (address, roots, tasks) = listen(&[b"h2"], move |io, number| {
            let mut connection = Connection::new(io, number, records.clone());
            let script = script.clone();
            async move {
                let _ended = connection.serve(&*script).await;
            }
        })
        .await;
        Self { seen, address, roots, _tasks: tasks }
    }

    pub fn access(&self) -> Access {
        access(self.address, &self.roots)
    }

    /// Bodies that were processed, in order of their bytes.
    pub fn bodies(&self) -> Vec<Vec<u8>> {
        let mut bodies: Vec<_> = self.seen.lock().unwrap().processed.iter().map(|one| one.body.clone()).collect();
        bodies.sort();
        bodies
    }
}

struct Stream {
    id: u32,
    body: Vec<u8>,
    process: bool,
    go_away_at: Option<usize>,
}

struct Connection {
    io: TlsStream<TcpStream>,
    number: usize,
    seen: Arc<Mutex<Seen>>,
    streams: Vec<Stream>,
    heads: u32,
    out: Vec<u8>,
}

impl Connection {
    fn new(io: TlsStream<TcpStream>, number: usize, seen: Arc<Mutex<Seen>>) -> Self {
        Self { io, number, seen, streams: Vec::new(), heads: 0, out: Vec::new() }
    }

    fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
        self.out.extend_from_slice(&[kind, flags]);
        self.out.extend_from_slice(&stream.to_be_bytes());
        self.out.extend_from_slice(payload);
    }

    fn go_away(&mut self, last: u32, code: u32) {
        self.write(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat());
    }

    async fn serve(&mut self, script: &(dyn Fn(usize, u32) -> Act + Send + Sync)) -> std::io::Result<()> {
        let mut preface = [0; 24];
        self.io.read_exact(&mut preface).await?;
        // Streams may send as much as they like, on all of the connection too.
        self.write(SETTINGS, 0, 0, &[&[0, 4][..], &ALL.to_be_bytes()].concat());
        self.write(WINDOW_UPDATE, 0, 0, &(ALL - 65_535).to_be_bytes());
        loop {
            self.io.write_all(&std::mem::take(&mut self.out)).await?;
            self.io.flush().await?;
            let mut head = [0; 9];
            self.io.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.io.read_exact(&mut payload).await?;
            let (kind, flags) = (head[3], head[4]);
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match kind {
                SETTINGS if flags & ACK == 0 => self.write(SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => self.write(PING, ACK, 0, &payload),
                HEADERS => {
                    self.heads += 1;
                    self.seen.lock().unwrap().heads += 1;
                    let mut stream = Stream { id, body: Vec::new(), process: false, go_away_at: None };
                    match script(self.number, self.heads) {
                        Act::Process => stream.process = true,
                        Act::Ignore => {}
                        Act::Reset(code) => self.write(RST_STREAM, 0, id, &code.to_be_bytes()),
                        // The first stream of a client is 1, and each further one is two more.
                        Act::GoAway(count, code) => self.go_away((2 * count).saturating_sub(1), code),
                        Act::GoAwayTwice(count, code) => {
                            self.go_away(ALL, NO_ERROR);
                            self.go_away((2 * count).saturating_sub(1), code);
                        }
                        Act::GoAwayWithin(bytes) => stream.go_away_at = Some(bytes),
                        Act::Break => return Ok(()),
                    }
                    self.streams.push(stream);
                    self.ended(id, flags);
                }
                DATA => {
                    if let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) {
                        stream.body.extend_from_slice(&payload);
                        if stream.go_away_at.take_if(|bytes| stream.body.len() >= *bytes).is_some() {
                            self.go_away(0, NO_ERROR);
                        }
                    }
                    self.ended(id, flags);
                }
                _ => {}
            }
        }
    }

    fn ended(&mut self, id: u32, flags: u8) {
        if flags & END_STREAM == 0 {
            return;
        }
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return };
        let stream = self.streams.swap_remove(at);
        if stream.process {
            self.seen.lock().unwrap().processed.push(Processed { connection: self.number, body: stream.body });
            // `:status: 200`, of the static table.
            self.write(HEADERS, END_HEADERS, id, &[0x88]);
            self.write(DATA, END_STREAM, id, b"done");
        }
    }
}
