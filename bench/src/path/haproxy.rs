//! Two haproxy in a row, as the two nginx: one thread each, HTTP/1.1 with keep-alive to what is behind, no buffering of
//! bodies, a line of log for each request.

use std::path::{Path, PathBuf};

use super::{Bench, Kind, Running, Upstream, installed};
use crate::{cipher, link::Seat, program::Program};

const THIS: Kind = Kind::HaproxyChain;

/// Starts the outer and the inner hop.
pub fn start(bench: &Bench, upstream: &Upstream) -> anyhow::Result<Running> {
    let outer = hop(bench, Seat::Outer, "outer", &bench.inner(THIS.port()))?;
    Ok(bench.proxied(THIS, upstream, vec![outer, hop(bench, Seat::Inner, "inner", upstream)?]))
}

fn hop(bench: &Bench, seat: Seat, name: &str, to: &Upstream) -> anyhow::Result<Program> {
    let file = bench.file(&format!("haproxy-{name}.cfg"));
    let listen = format!("{}:{}", bench.link.address(seat), THIS.port());
    std::fs::write(&file, configuration(&bench.file(""), name, &listen, to))?;
    let mut command = bench.link.command(seat, &program()?);
    command.args(["-db", "-f"]).arg(&file);
    Program::start(&format!("haproxy {name}"), command, &bench.file(&format!("haproxy-{name}.log")))
}

fn program() -> anyhow::Result<PathBuf> {
    installed("haproxy", &["/usr/sbin/haproxy", "/usr/local/sbin/haproxy", "/usr/bin/haproxy"])
}

fn configuration(certificates: &Path, name: &str, listen: &str, to: &Upstream) -> String {
    let (certificates, cipher) = (certificates.display(), cipher::OPENSSL);
    let Upstream { address, name: to, ca, .. } = to;
    let ca = ca.display();
    format!(
        "global
  nbthread 1
  maxconn 9000
  log stdout format raw local0
  ssl-load-extra-del-ext
  ssl-default-bind-options ssl-min-ver TLSv1.3
  ssl-default-bind-ciphersuites {cipher}
  ssl-default-server-options ssl-min-ver TLSv1.3
  ssl-default-server-ciphersuites {cipher}
  tune.h2.max-concurrent-streams 20000
defaults
  mode http
  log global
  option httplog
  http-reuse always
  timeout connect 10s
  timeout client 600s
  timeout server 600s
  timeout tunnel 1h
frontend users
  bind {listen} ssl crt {certificates}/{name}.crt alpn h2,http/1.1
  default_backend next
backend next
  server next {address} ssl verify required ca-file {ca} sni str({to}) verifyhost {to}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn haproxy_itself_finds_nothing_wrong_with_its_configuration() {
        let Ok(program) = program() else { return };
        let dir = tempfile::tempdir().unwrap();
        crate::certificates::write(dir.path(), &[("outer", vec!["127.0.0.1".to_owned()])]).unwrap();
        let to = Upstream {
            address: "127.0.0.1:2".to_owned(),
            name: "inner",
            ca: dir.path().join("ca.crt"),
            token: None,
            admin: PathBuf::new(),
        };
        let file = dir.path().join("cfg");
        std::fs::write(&file, configuration(dir.path(), "outer", "127.0.0.1:1", &to)).unwrap();
        let seen = std::process::Command::new(program).args(["-c", "-f"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&seen.stderr);
        assert!(seen.status.success() && !said.contains("WARNING"), "{said}");
    }
}
