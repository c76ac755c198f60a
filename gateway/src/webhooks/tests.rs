//! Deliveries over real sockets to a receiver that a test plays.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::config::webhook::secret;

/// The example of the Standard Webhooks specification's libraries.
#[test]
fn c8_signatures_are_as_the_standard_says() {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
    let signed = signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
    assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

/// Takes one request and answers it; its head and body.
pub async fn receive(listener: &TcpListener, status: &str) -> (String, String) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.unwrap();
        assert!(read > 0, "the request broke off");
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_ascii_lowercase();
        let length: usize =
            length.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
        if body.len() == length {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            return (head.to_owned(), body.to_owned());
        }
    }
}
