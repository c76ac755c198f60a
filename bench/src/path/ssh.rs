//! OpenSSH: the site dials out and forwards a port back to its upstream. The user's TLS goes through to the upstream,
//! inside the one connection of SSH; nobody in between knows who asks for what.

use std::{path::Path, process::Command};

use anyhow::Context;

use super::{Bench, Kind, Running, Upstream, installed};
use crate::{
    cipher,
    link::Seat,
    program::{Program, output},
};

const THIS: Kind = Kind::Ssh;
/// Where the site dials in.
const TUNNEL: u16 = 2222;
/// What sshd insists on: an empty folder for its unprivileged half.
const EMPTY: &str = "/run/sshd";

/// Starts both ends.
pub async fn start(bench: &Bench, upstream: &Upstream) -> anyhow::Result<Running> {
    let (sshd, ssh) = (installed("sshd", &["/usr/sbin/sshd"])?, installed("ssh", &["/usr/bin/ssh"])?);
    let outer = bench.link.address(Seat::Outer);
    keys(bench, &outer).await?;
    let hops = vec![server(bench, &sshd, &outer)?, client(bench, upstream, &ssh)?];
    Ok(bench.forwarded(THIS, upstream, hops))
}

/// Keys of this run for both ends, each told of the other's.
async fn keys(bench: &Bench, outer: &str) -> anyhow::Result<()> {
    for name in ["ssh-host", "ssh-user"] {
        if bench.file(name).exists() {
            continue;
        }
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(bench.file(name));
        output(command, b"").await?;
    }
    let host = std::fs::read_to_string(bench.file("ssh-host.pub"))?;
    Ok(std::fs::write(bench.file("ssh-known"), format!("[{outer}]:{TUNNEL} {host}"))?)
}

/// sshd has a process for each connection, which outlives the one that accepts: all of them are in a process namespace
/// that ends with its first.
fn server(bench: &Bench, sshd: &Path, outer: &str) -> anyhow::Result<Program> {
    std::fs::create_dir_all(EMPTY).with_context(|| EMPTY.to_owned())?;
    let file = bench.file("sshd.conf");
    std::fs::write(&file, configuration(&bench.file(""), outer))?;
    let mut command = bench.link.command(Seat::Outer, Path::new("unshare"));
    command.args(["--pid", "--fork", "--kill-child=KILL"]).arg(sshd).args(["-D", "-e", "-f"]).arg(&file);
    Program::start("sshd", command, &bench.file("sshd.log"))
}

fn client(bench: &Bench, upstream: &Upstream, ssh: &Path) -> anyhow::Result<Program> {
    let outer = bench.link.address(Seat::Outer);
    let mut command = bench.link.command(Seat::Inner, ssh);
    command.args(["-F", "none", "-N", "-T", "-p", &TUNNEL.to_string(), "-i"]).arg(bench.file("ssh-user"));
    for option in [
        "IdentitiesOnly=yes".to_owned(),
        format!("UserKnownHostsFile={}", bench.file("ssh-known").display()),
        "StrictHostKeyChecking=yes".to_owned(),
        "ExitOnForwardFailure=yes".to_owned(),
        "ServerAliveInterval=15".to_owned(),
        // A second apart: sshd may not listen yet.
        "ConnectionAttempts=20".to_owned(),
        format!("Ciphers={}", cipher::OPENSSH),
    ] {
        command.arg("-o").arg(option);
    }
    command.arg("-R").arg(format!("{}:{}", bench.door(THIS), upstream.address)).arg(format!("{}@{outer}", user()?));
    Program::start("ssh", command, &bench.file("ssh.log"))
}

/// Who this process runs as, by the name that sshd knows.
fn user() -> anyhow::Result<String> {
    let seen = Command::new("id").arg("-un").output().context("id -un")?;
    Ok(String::from_utf8(seen.stdout)?.trim().to_owned())
}

fn configuration(dir: &Path, outer: &str) -> String {
    let (dir, cipher) = (dir.display(), cipher::OPENSSH);
    format!(
        "ListenAddress {outer}:{TUNNEL}
HostKey {dir}/ssh-host
AuthorizedKeysFile {dir}/ssh-user.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
GatewayPorts clientspecified
Compression no
Ciphers {cipher}
PidFile none
"
    )
}
