//! Two nginx in a row, one process each: keep-alive to what is behind, buffering off, an access log as audit.

use std::path::{Path, PathBuf};

use super::{Also, Bench, Kind, Running, Upstream, installed};
use crate::{cipher, link::Seat, program::Program, scene::Crowd};

const THIS: Kind = Kind::NginxChain;
/// Connections of a process, unless a crowd needs more.
const CONNECTIONS: u32 = 9000;
/// Connections beside those of a crowd.
const SPARE: u32 = 1000;

/// Starts the outer and the inner hop.
pub fn start(bench: &Bench, upstream: &Upstream, crowd: Crowd) -> anyhow::Result<Running> {
    let connections = if let Crowd::Watches(watches) = crowd { needed(watches).max(CONNECTIONS) } else { CONNECTIONS };
    let address = |seat, port| format!("{}:{port}", bench.link.address(seat));
    let url = |port| format!("https://{}", address(Seat::Outer, port));
    let port = THIS.port();
    // Of the site beside, where two share the outer hop.
    let port_beside = port + 1;
    let ports = if crowd == Crowd::Two { vec![port, port_beside] } else { vec![port] };
    let (mut servers, mut hops, mut also) = (Vec::new(), Vec::new(), Also::default());
    for each in ports {
        let (inner, name) = (bench.inner(each), if each == port { "inner" } else { "inner-beside" });
        hops.push(hop(
            bench,
            Seat::Inner,
            name,
            Plan { servers: &[(inner.address.clone(), upstream.clone())], connections },
        )?);
        servers.push((address(Seat::Outer, each), inner));
    }
    if crowd == Crowd::Two {
        also.beside = Some((url(port_beside), None));
    }
    hops.insert(0, hop(bench, Seat::Outer, "outer", Plan { servers: &servers, connections })?);
    Ok(Running { also, ..bench.proxied(THIS, upstream, hops) })
}

/// Connections, and so open files, of the inner hop: one of HTTP/1.1 on each side for each watch.
fn needed(watches: u32) -> u32 {
    2 * watches + SPARE
}

/// Why this number of watches is too large for nginx, if it is.
pub fn cannot(watches: u32) -> Option<String> {
    let (needed, allowed) = (needed(watches), daemon::raise_open_files()?);
    let refused = format!("a hop of it needs {needed} open files, and the system allows {allowed}");
    (u64::from(needed) > allowed).then_some(refused)
}

/// What a hop does.
#[derive(Clone, Copy)]
struct Plan<'a> {
    /// What is listened on, and where that leads, each.
    servers: &'a [(String, Upstream)],
    /// Connections of its process.
    connections: u32,
}

fn hop(bench: &Bench, seat: Seat, name: &str, plan: Plan<'_>) -> anyhow::Result<Program> {
    let (dir, certificates) = (bench.file(&format!("nginx-{name}")), bench.file(""));
    std::fs::create_dir_all(&dir)?;
    let file = dir.join("nginx.conf");
    let certificate = if seat == Seat::Outer { "outer" } else { "inner" };
    std::fs::write(&file, configuration(&certificates, &dir, certificate, plan))?;
    let mut command = bench.link.command(seat, &program()?);
    command.arg("-c").arg(&file).arg("-p").arg(&dir);
    Program::start(&format!("nginx {name}"), command, &dir.join("log"))
}

fn program() -> anyhow::Result<PathBuf> {
    installed("nginx", &["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"])
}

/// nginx compares certificates with names, never with addresses.
fn configuration(certificates: &Path, dir: &Path, name: &str, plan: Plan<'_>) -> String {
    let Plan { servers, connections } = plan;
    let (certificates, dir, cipher) = (certificates.display(), dir.display(), cipher::OPENSSL);
    let server = |(number, (listen, to)): (usize, &(String, Upstream))| {
        let Upstream { address, name: to, ca, .. } = to;
        let ca = ca.display();
        format!(
            "  upstream next{number} {{ server {address}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen {listen} ssl http2; keepalive_requests 1000000; http2_max_concurrent_streams 20000;
    ssl_certificate {certificates}/{name}.crt; ssl_certificate_key {certificates}/{name}.key; ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites {cipher};
    client_max_body_size 0; tcp_nodelay on;
    location / {{
      proxy_pass https://next{number}; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $next_connection;
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 600s; proxy_send_timeout 600s;
      proxy_ssl_trusted_certificate {ca}; proxy_ssl_verify on; proxy_ssl_name {to}; proxy_ssl_protocols TLSv1.3;
      proxy_ssl_conf_command Ciphersuites {cipher};
    }}
  }}
"
        )
    };
    let servers: String = servers.iter().enumerate().map(server).collect();
    format!(
        "daemon off; master_process off; pid {dir}/pid; error_log stderr warn; worker_rlimit_nofile 20000;
events {{ worker_connections {connections}; }}
http {{
  access_log {dir}/access.log;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  map $http_upgrade $next_connection {{ default upgrade; '' ''; }}
{servers}}}
"
    )
}
