//! rathole over its TLS transport: a forwarded port. The user's TLS goes through to the upstream, inside that of the
//! tunnel; nobody in between knows who asks for what.

use std::path::{Path, PathBuf};

use super::{Bench, Kind, Running, Upstream, installed};
use crate::{
    link::Seat,
    program::{Program, output},
};

const THIS: Kind = Kind::Rathole;
/// Where the client of rathole dials in.
const TUNNEL: u16 = 2333;
/// PKCS #12 needs one.
const PASSWORD: &str = "bench";

/// Starts both ends.
pub async fn start(bench: &Bench, upstream: &Upstream) -> anyhow::Result<Running> {
    let program = installed("rathole", &[Path::new(super::PEERS).join("bin/rathole")])?;
    let identity = identity(bench).await?;
    let (outer, door) = (bench.link.address(Seat::Outer), bench.door(THIS));
    let server = format!(
        "[server]\nbind_addr = \"{outer}:{TUNNEL}\"\ndefault_token = \"bench\"\n\
         [server.transport]\ntype = \"tls\"\n[server.transport.tls]\npkcs12 = {identity:?}\npkcs12_password = \"{PASSWORD}\"\n\
         [server.services.upstream]\nbind_addr = \"{door}\"\nnodelay = true\n"
    );
    let client = format!(
        "[client]\nremote_addr = \"{outer}:{TUNNEL}\"\ndefault_token = \"bench\"\n\
         [client.transport]\ntype = \"tls\"\n[client.transport.tls]\ntrusted_root = {:?}\nhostname = \"outer\"\n\
         [client.services.upstream]\nlocal_addr = \"{}\"\nnodelay = true\n",
        bench.file("ca.crt"),
        upstream.address
    );
    let hop = |seat, side: &str, text: String| {
        let file = bench.file(&format!("rathole-{side}.toml"));
        std::fs::write(&file, text)?;
        let mut command = bench.link.command(seat, &program);
        command.arg(format!("--{side}")).arg(&file);
        Program::start(&format!("rathole {side}"), command, &bench.file(&format!("rathole-{side}.log")))
    };
    let hops = vec![hop(Seat::Outer, "server", server)?, hop(Seat::Inner, "client", client)?];
    Ok(bench.forwarded(THIS, upstream, hops))
}

/// The certificate of the outer hop, as rathole reads it.
async fn identity(bench: &Bench) -> anyhow::Result<PathBuf> {
    let file = bench.file("outer.p12");
    let mut command = std::process::Command::new("openssl");
    command.args(["pkcs12", "-export", "-passout"]).arg(format!("pass:{PASSWORD}"));
    command.arg("-in").arg(bench.file("outer.crt")).arg("-inkey").arg(bench.file("outer.key")).arg("-out").arg(&file);
    output(command, b"").await?;
    Ok(file)
}
