//! Deliveries over real sockets to a receiver that a test plays.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[test]
fn c8_addresses_that_could_lead_elsewhere_are_refused() {
    for fine in ["https://hooks.test/a?b=c", "http://127.0.0.1:8080/", "http://[::1]/x", "https://10.0.0.1/"] {
        assert!(address(fine).is_ok(), "{fine}");
    }
    for bad in [
        "http://hooks.test/",
        "http://localhost/",
        "http://169.254.169.254/latest",
        "http://2852039166/",
        "https://user:pass@hooks.test/",
        "https://hooks.test/#a",
        "file:///etc/passwd",
        "gopher://x/",
        "https://",
        "",
        "not a url",
    ] {
        assert!(address(bad).is_err(), "{bad}");
    }
}

#[test]
fn c8_a_secret_is_of_enough_bytes_and_prints_nowhere() {
    assert_eq!(secret(SECRET).unwrap().len(), 24);
    assert!(secret(&format!("{SECRET}\n")).is_ok());
    for bad in ["", "whsec_", "whsec_c2hvcnQ=", "hunter2 hunter2 hunter2 hunter2"] {
        let error = secret(bad).unwrap_err();
        assert!(error.contains("openssl") && !error.contains("hunter2"), "{error}");
    }
    let url = address("https://hooks.test/services/T0KEN").unwrap();
    let webhook = Webhook::new(url, &secret(SECRET).unwrap(), Kind::ALL.to_vec(), None).unwrap();
    let printed = format!("{webhook:?}");
    assert!(printed.contains("hooks.test") && !printed.contains("T0KEN"), "{printed}");
}

/// The example of the Standard Webhooks specification's libraries.
#[test]
fn c8_signatures_are_as_the_standard_says() {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret(SECRET).unwrap());
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
