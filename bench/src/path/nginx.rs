//! Two nginx in a row, one process each: keep-alive to what is behind, buffering off, an access log as audit.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{Bench, Running, can_all};
use crate::{link::Seat, program::Program};

const PORT: u16 = 8443;

/// Starts both.
pub fn start(bench: &Bench) -> anyhow::Result<Running> {
    let inner = format!("{}:{PORT}", bench.link.address(Seat::Inner));
    let hops = vec![hop(bench, Seat::Outer, "outer", &inner)?, hop(bench, Seat::Inner, "inner", &bench.upstream)?];
    let url = format!("https://{}:{PORT}", bench.link.address(Seat::Outer));
    Ok(Running { url, ca: bench.file("ca.crt"), token: None, hops, cannot: can_all })
}

fn hop(bench: &Bench, seat: Seat, name: &str, to: &str) -> anyhow::Result<Program> {
    let (dir, certificates) = (bench.file(&format!("nginx-{name}")), bench.file(""));
    std::fs::create_dir_all(&dir)?;
    let file = dir.join("nginx.conf");
    let listen = format!("{}:{PORT}", bench.link.address(seat));
    std::fs::write(&file, configuration(&certificates, &dir, name, (&listen, to)))?;
    let mut command = bench.link.command(seat, &program()?);
    command.arg("-c").arg(&file).arg("-p").arg(&dir);
    Program::start(&format!("nginx {name}"), command, &dir.join("log"))
}

fn program() -> anyhow::Result<PathBuf> {
    let places = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"];
    places.iter().map(PathBuf::from).find(|path| path.exists()).context("nginx is not installed (apt install nginx)")
}

/// Both hops go to a server at the site, whose certificate names it `inner`; nginx compares with names, never with addresses.
fn configuration(certificates: &Path, dir: &Path, name: &str, (listen, to): (&str, &str)) -> String {
    let (certificates, dir) = (certificates.display(), dir.display());
    format!(
        "daemon off; master_process off; pid {dir}/pid; error_log stderr warn; worker_rlimit_nofile 20000;
events {{ worker_connections 9000; }}
http {{
  access_log {dir}/access.log;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  upstream next {{ server {to}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen {listen} ssl http2; keepalive_requests 1000000; http2_max_concurrent_streams 20000;
    ssl_certificate {certificates}/{name}.crt; ssl_certificate_key {certificates}/{name}.key; ssl_protocols TLSv1.3;
    client_max_body_size 0; tcp_nodelay on;
    location / {{
      proxy_pass https://next; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 600s; proxy_send_timeout 600s;
      proxy_ssl_trusted_certificate {certificates}/ca.crt; proxy_ssl_verify on; proxy_ssl_name inner; proxy_ssl_protocols TLSv1.3;
    }}
  }}
}}
"
    )
}
