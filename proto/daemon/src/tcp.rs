//! Names to addresses, addresses to a TCP connection: as every dial here does, side by side (Happy Eyeballs, RFC 8305),
//! so that an address that is silent costs a quarter of a second.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, TryFutureExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

/// Addresses of one name that are tried.
const ADDRESSES: usize = 8;
/// An address that has not answered after this does not delay the next one (RFC 8305 section 5, Connection Attempt
/// Delay).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Why there is no connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// A name could not be looked up.
    #[error("cannot look up {host}: {reason}")]
    Resolve {
        /// The host name that was looked up.
        host: String,
        /// Error of the lookup.
        reason: String,
    },
    /// No address accepted a TCP connection.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The address, or the name if there were several.
        address: String,
        /// Errors of the attempts; with several addresses, one for each.
        reason: String,
    },
}

/// A TCP connection to a host name or address without any proxy: for what is no tunnel, such as an apiserver or an
/// issuer. Looking the name up, and connecting, may each take as long as `step`. The error does not say what it was
/// for.
pub async fn connect_host(host: &str, port: u16, step: Duration) -> io::Result<TcpStream> {
    let dialled = async {
        let addresses = resolve(host, port, &[], step).await?;
        connect(host, &addresses, step).await
    };
    let socket = dialled.await.map_err(|error| match error {
        ConnectError::Resolve { reason, .. } => io::Error::other(format!("looking up the name: {reason}")),
        ConnectError::Connect { address, reason } => io::Error::other(format!("{address}: {reason}")),
    })?;
    // An optimisation; a system that refuses it still works.
    let _ = socket.set_nodelay(true);
    Ok(socket)
}

/// Looks `host` up, among the aliases first.
pub async fn resolve(
    host: &str,
    port: u16,
    aliases: &[(String, IpAddr)],
    time: Duration,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let aliased: Vec<_> = aliases
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(host))
        .map(|(_, address)| SocketAddr::new(*address, port))
        .collect();
    if !aliased.is_empty() {
        return Ok(aliased);
    }
    let late = || ConnectError::Resolve { host: host.to_owned(), reason: "no answer in time".to_owned() };
    timeout(time, look_up(host, port)).await.unwrap_or_else(|_| Err(late()))
}

/// Looks `host` up, for as long as the system's resolver takes.
///
/// Dropping this does not end the look-up, which goes on in a thread of its own.
pub async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let failed = |reason: String| ConnectError::Resolve { host: host.to_owned(), reason };
    let found = tokio::net::lookup_host((host, port)).await.map_err(|error| failed(error.to_string()))?;
    let mut addresses = interleave(found);
    addresses.truncate(ADDRESSES);
    if addresses.is_empty() { Err(failed("the name has no address".to_owned())) } else { Ok(addresses) }
}

/// In the resolver's order, but families take turns (RFC 8305 section 4), so that one that leads nowhere costs one
/// attempt's delay however many addresses it has.
fn interleave(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = addresses.peekable();
    let first_is_v4 = addresses.peek().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) = addresses.partition(|address| address.is_ipv4() == first_is_v4);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::new();
    loop {
        let before = ordered.len();
        ordered.extend(first.next());
        ordered.extend(second.next());
        if ordered.len() == before {
            return ordered;
        }
    }
}

/// Connects to the first of `addresses` that answers.
pub async fn connect(host: &str, addresses: &[SocketAddr], time: Duration) -> Result<TcpStream, ConnectError> {
    let failed = |address: String, reason: String| ConnectError::Connect { address, reason };
    let all = race(addresses, |address| TcpStream::connect(address).map_err(move |error| (address, error)).boxed());
    match timeout(time, all).await {
        Ok(Ok(socket)) => Ok(socket),
        Ok(Err(errors)) => match &errors[..] {
            [(address, error)] => Err(failed(address.to_string(), error.to_string())),
            _ => {
                let reasons: Vec<_> = errors.iter().map(|(address, error)| format!("{address}: {error}")).collect();
                Err(failed(host.to_owned(), reasons.join("; ")))
            }
        },
        Err(_) => {
            let address = match addresses {
                [one] => one.to_string(),
                _ => host.to_owned(),
            };
            Err(failed(address, "no answer in time".to_owned()))
        }
    }
}

/// Tries the addresses in their order (RFC 8305 section 5): the next one when the one before has failed, or has not
/// answered within [`NEXT_ADDRESS`]. The first that succeeds wins and ends the others; else all errors, in the order in
/// which they came.
///
/// Boxed: of an `AsyncFn` the compiler cannot tell that the whole is `Send`, and a caller that spawns needs that.
pub async fn race<'a, T, E>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> BoxFuture<'a, Result<T, E>>,
) -> Result<T, Vec<E>> {
    let mut waiting = addresses.iter();
    let (mut attempts, mut errors) = (FuturesUnordered::new(), Vec::new());
    loop {
        attempts.extend(waiting.next().map(|address| attempt(*address)));
        tokio::select! {
            biased;
            ended = attempts.next() => match ended {
                Some(Ok(done)) => return Ok(done),
                Some(Err(error)) => errors.push(error),
                None => return Err(errors),
            },
            () = sleep(NEXT_ADDRESS), if waiting.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 443)).collect()
    }

    /// What each attempt does: an answer or a refusal after a time, or neither.
    #[derive(Clone, Copy)]
    enum Does {
        Answers(u64),
        Refuses(u64),
        Nothing,
    }

    /// Which address won, and when each attempt began.
    async fn raced(script: &[(&str, Does)]) -> (Result<IpAddr, Vec<IpAddr>>, Vec<u64>) {
        let begun = Instant::now();
        let starts = Mutex::new(Vec::new());
        let texts: Vec<_> = script.iter().map(|(text, _)| *text).collect();
        let result = race(&addresses(&texts), |address| {
            starts.lock().unwrap().push(u64::try_from(begun.elapsed().as_millis()).unwrap());
            let ip = address.ip();
            let does = script.iter().find(|(text, _)| text.parse() == Ok(ip)).unwrap().1;
            async move {
                match does {
                    Does::Answers(after) => {
                        sleep(Duration::from_millis(after)).await;
                        Ok(ip)
                    }
                    Does::Refuses(after) => {
                        sleep(Duration::from_millis(after)).await;
                        Err(ip)
                    }
                    Does::Nothing => std::future::pending().await,
                }
            }
            .boxed()
        })
        .await;
        (result, starts.into_inner().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_delays_the_next_by_a_quarter_of_a_second() {
        let (won, starts) = raced(&[("2001:db8::1", Does::Nothing), ("192.0.2.1", Does::Answers(5))]).await;
        assert_eq!((won, starts), (Ok("192.0.2.1".parse().unwrap()), vec![0, 250]));
        // Several of one family.
        let script = [("192.0.2.1", Does::Nothing), ("192.0.2.2", Does::Nothing), ("192.0.2.3", Does::Answers(5))];
        let (won, starts) = raced(&script).await;
        assert_eq!((won, starts), (Ok("192.0.2.3".parse().unwrap()), vec![0, 250, 500]));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_address_does_not_delay_the_next() {
        let script =
            [("192.0.2.1", Does::Refuses(3)), ("192.0.2.2", Does::Refuses(2)), ("192.0.2.3", Does::Answers(5))];
        let (won, starts) = raced(&script).await;
        assert_eq!(won, Ok("192.0.2.3".parse().unwrap()));
        assert!(starts[1] < 10 && starts[2] < 20, "{starts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_first_address_wins_if_it_answers_first() {
        let (won, _) = raced(&[("2001:db8::1", Does::Answers(300)), ("192.0.2.1", Does::Answers(100))]).await;
        assert_eq!(won, Ok("2001:db8::1".parse().unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn all_refusals_are_told() {
        let (won, _) = raced(&[("2001:db8::1", Does::Refuses(1)), ("192.0.2.1", Does::Refuses(1))]).await;
        assert_eq!(won, Err(vec!["2001:db8::1".parse().unwrap(), "192.0.2.1".parse().unwrap()]));
        assert_eq!(raced(&[]).await.0, Err(vec![]));
    }

    #[test]
    fn families_take_turns_from_the_resolvers_first_on() {
        let order = |texts: &[&str]| interleave(addresses(texts).into_iter());
        assert_eq!(
            order(&["2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1", "192.0.2.2"]),
            addresses(&["2001:db8::1", "192.0.2.1", "2001:db8::2", "192.0.2.2", "2001:db8::3"])
        );
        assert_eq!(
            order(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]),
            addresses(&["192.0.2.1", "2001:db8::1", "192.0.2.2"])
        );
        assert_eq!(order(&["192.0.2.1"]), addresses(&["192.0.2.1"]));
        assert!(order(&[]).is_empty());
    }

    /// A listener whose queue is full drops what comes, as a firewall does.
    #[tokio::test]
    async fn connect_takes_the_address_that_answers() {
        let open = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = open.local_addr().unwrap().port();
        let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let silent = SocketAddr::new("127.0.0.2".parse().unwrap(), port);
        full.bind(&silent.into()).unwrap();
        full.listen(0).unwrap();
        let mut queued = Vec::new();
        while let Ok(Ok(socket)) = timeout(Duration::from_millis(100), TcpStream::connect(silent)).await {
            queued.push(socket);
        }
        let connected = connect("test", &[silent, open.local_addr().unwrap()], Duration::from_secs(10)).await;
        assert_eq!(connected.unwrap().peer_addr().unwrap(), open.local_addr().unwrap());
        drop(open);
        let refused = connect("test", &[silent], Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("cannot connect to {silent}: no answer in time"));
    }
}
