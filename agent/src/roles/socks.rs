//! SOCKS5 (RFC 1928), with a user name and a password (RFC 1929): `proxy-url: socks5://...` of a kubeconfig. The proxy
//! looks names up, as it does for kubectl.

use std::{io, net::IpAddr};

use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;
/// The version of the exchange about user name and password.
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// A SOCKS5 proxy.
#[derive(Debug, Clone)]
pub struct Socks5 {
    /// Its name or address.
    pub host: String,
    /// TCP port of the proxy.
    pub port: u16,
    /// User name and password.
    pub credentials: Option<(String, SecretString)>,
}

impl Socks5 {
    /// Asks the proxy at the other end of `io` to connect to `host`. Behind an `Ok` what comes is the host's.
    pub async fn ask<T>(&self, io: &mut T, host: &str, port: u16) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let methods: &[u8] = match &self.credentials {
            None => &[VERSION, 1, NO_AUTHENTICATION],
            Some(_) => &[VERSION, 2, NO_AUTHENTICATION, PASSWORD],
        };
        io.write_all(methods).await?;
        io.flush().await?;
        let mut chosen = [0; 2];
        io.read_exact(&mut chosen).await?;
        match (chosen, &self.credentials) {
            ([VERSION, NO_AUTHENTICATION], _) => {}
            ([VERSION, PASSWORD], Some((user, password))) => authenticate(io, user, password).await?,
            ([VERSION, _], None) => return Err(io::Error::other("the SOCKS proxy wants a user name and a password")),
            ([VERSION, _], _) => return Err(io::Error::other("the SOCKS proxy wants another kind of credential")),
            _ => return Err(io::Error::other("the proxy does not speak SOCKS5")),
        }
        let mut request = vec![VERSION, CONNECT, 0];
        match host.parse() {
            Ok(IpAddr::V4(address)) => {
                request.push(IPV4);
                request.extend(address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                request.push(IPV6);
                request.extend(address.octets());
            }
            Err(_) => {
                request.push(NAME);
                put(&mut request, host)?;
            }
        }
        request.extend(port.to_be_bytes());
        io.write_all(&request).await?;
        io.flush().await?;
        answer(io).await
    }
}

async fn authenticate<T>(io: &mut T, user: &str, password: &SecretString) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut message = vec![PASSWORD_VERSION];
    put(&mut message, user)?;
    put(&mut message, password.expose_secret())?;
    io.write_all(&message).await?;
    io.flush().await?;
    let mut answer = [0; 2];
    io.read_exact(&mut answer).await?;
    if answer[1] == 0 {
        Ok(())
    } else {
        Err(io::Error::other("the SOCKS proxy refuses the user name and the password"))
    }
}

/// A text behind its length.
fn put(message: &mut Vec<u8>, text: &str) -> io::Result<()> {
    let length = u8::try_from(text.len()).map_err(|_| io::Error::other("SOCKS takes names of at most 255 bytes"))?;
    message.push(length);
    message.extend(text.as_bytes());
    Ok(())
}

/// Reads the answer to its end, and not a byte more.
async fn answer<T: AsyncRead + Unpin>(io: &mut T) -> io::Result<()> {
    let mut head = [0; 4];
    io.read_exact(&mut head).await?;
    let [VERSION, reply, _, kind] = head else { return Err(io::Error::other("the proxy does not speak SOCKS5")) };
    if reply != 0 {
        let why = match reply {
            2 => "its rules do not allow it",
            3 => "the network cannot be reached",
            4 => "the host cannot be reached, or is not known",
            5 => "the connection was refused",
            6 => "it took too long",
            _ => "it gave no reason that is known",
        };
        return Err(io::Error::other(format!("the SOCKS proxy did not connect: {why} ({reply})")));
    }
    let address = match kind {
        IPV4 => 4,
        IPV6 => 16,
        NAME => usize::from(io.read_u8().await?),
        _ => return Err(io::Error::other("the SOCKS proxy's answer cannot be read")),
    };
    let mut rest = [0; 255 + 2];
    io.read_exact(&mut rest[..address + 2]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(socks: &Socks5, host: &str, steps: &[(&[u8], &[u8])]) -> io::Result<()> {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let proxy = async {
            for (expected, answer) in steps {
                let mut got = vec![0; expected.len()];
                far.read_exact(&mut got).await.unwrap();
                assert_eq!(got, *expected);
                far.write_all(answer).await.unwrap();
            }
            far
        };
        let (asked, _far) = tokio::join!(socks.ask(&mut near, host, 443), proxy);
        asked
    }

    #[tokio::test]
    async fn socks_proxy_is_asked_for_a_name_or_an_address() {
        let socks = Socks5 { host: "p".to_owned(), port: 1080, credentials: None };
        let hello = (&b"\x05\x01\x00"[..], &b"\x05\x00"[..]);
        let name = (&b"\x05\x01\x00\x03\x03api\x01\xbb"[..], &b"\x05\x00\x00\x01\0\0\0\0\0\0"[..]);
        ask(&socks, "api", &[hello, name]).await.unwrap();
        let address = (&b"\x05\x01\x00\x01\x0a\0\0\x01\x01\xbb"[..], &b"\x05\x00\x00\x03\x02ab\0\0"[..]);
        ask(&socks, "10.0.0.1", &[hello, address]).await.unwrap();
        let refused = (&b"\x05\x01\x00\x03\x03api\x01\xbb"[..], &b"\x05\x05\x00\x01\0\0\0\0\0\0"[..]);
        let error = ask(&socks, "api", &[hello, refused]).await.unwrap_err().to_string();
        assert!(error.contains("the connection was refused"), "{error}");
        let error = ask(&socks, "api", &[(&b"\x05\x01\x00"[..], &b"\x05\x02"[..])]).await.unwrap_err().to_string();
        assert!(error.contains("wants a user name"), "{error}");
        assert!(ask(&socks, "api", &[(&b"\x05\x01\x00"[..], &b"HT"[..])]).await.is_err());
    }

    #[tokio::test]
    async fn socks_proxy_is_told_the_password_that_it_asks_for() {
        let credentials = Some(("me".to_owned(), SecretString::from("word")));
        let socks = Socks5 { host: "p".to_owned(), port: 1080, credentials };
        let hello = (&b"\x05\x02\x00\x02"[..], &b"\x05\x02"[..]);
        let name = (&b"\x05\x01\x00\x03\x03api\x01\xbb"[..], &b"\x05\x00\x00\x01\0\0\0\0\0\0"[..]);
        ask(&socks, "api", &[hello, (&b"\x01\x02me\x04word"[..], &b"\x01\x00"[..]), name]).await.unwrap();
        let wrong = (&b"\x01\x02me\x04word"[..], &b"\x01\x01"[..]);
        let error = ask(&socks, "api", &[hello, wrong]).await.unwrap_err().to_string();
        assert!(error.contains("refuses the user name") && !error.contains("word "), "{error}");
    }
}
