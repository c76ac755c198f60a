//! Paths of memory in virtual time, for tests: no socket and no processor decides, only what a test says of the way.

use std::{
    collections::VecDeque,
    fmt, io,
    io::IoSliceMut,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use tokio::time::{Instant, Sleep, sleep_until};

/// What is under way to one end of a path; what is due earlier overtakes.
#[derive(Default)]
pub(crate) struct UnderWay {
    pieces: VecDeque<(Instant, Bytes)>,
    sleep: Option<Pin<Box<Sleep>>>,
    reader: Option<Waker>,
}

impl UnderWay {
    pub(crate) fn push(&mut self, due: Instant, bytes: &[u8]) {
        let later = self.pieces.iter().rev().take_while(|piece| piece.0 > due).count();
        self.pieces.insert(self.pieces.len() - later, (due, Bytes::copy_from_slice(bytes)));
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// The first piece once it is due; it stays until [`Self::pop`].
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<&mut Bytes> {
        self.reader = Some(cx.waker().clone());
        let Some((due, _)) = self.pieces.front() else { return Poll::Pending };
        if *due > Instant::now() {
            let sleep = self.sleep.insert(Box::pin(sleep_until(*due)));
            ready!(sleep.as_mut().poll(cx));
        }
        Poll::Ready(self.pieces.front_mut().map(|(_, bytes)| bytes).unwrap())
    }

    pub(crate) fn pop(&mut self) {
        self.pieces.pop_front();
    }
}

pub(crate) type Way = Arc<Mutex<UnderWay>>;

/// One end of a path of datagrams.
pub(crate) struct Datagrams<D> {
    pub(crate) own: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) there: Way,
    pub(crate) here: Way,
    /// Tells when a datagram of a given size that is sent now comes out, if it does.
    pub(crate) due: D,
}

impl<D> fmt::Debug for Datagrams<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Datagrams")
    }
}

#[derive(Debug)]
struct Always;

impl UdpPoller for Always {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl<D: Fn(usize) -> Option<Instant> + Send + Sync + 'static> AsyncUdpSocket for Datagrams<D> {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Always)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if let Some(due) = (self.due)(transmit.contents.len()) {
            self.there.lock().unwrap().push(due, transmit.contents);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut way = self.here.lock().unwrap();
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let datagram = match way.poll(cx) {
                Poll::Pending if count == 0 => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(datagram) => datagram,
            };
            buffer[..datagram.len()].copy_from_slice(datagram);
            *meta = RecvMeta { addr: self.peer, len: datagram.len(), stride: datagram.len(), ..RecvMeta::default() };
            way.pop();
            count += 1;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.own)
    }
}

/// Both ends' configurations for a server of that name, without client certificates.
pub(crate) fn tls(name: &str) -> (rustls::ServerConfig, rustls::ClientConfig) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (server, client)
}
