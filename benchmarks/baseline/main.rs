//! The baseline of the server scenarios: what the kernel, and OpenSSL for TLS, cost without an event loop.
//!
//!     baseline WHAT CPU [ARGUMENT]...
//!
//! serves on one thread, pinned to that core (-1: to none), prints `{"port": N}` (0 for a Unix socket) and runs until it
//! is killed. Each server is the smallest program that gives the right answers. `__init__.py` builds it with rustc alone,
//! so `system` declares the system calls by hand. Linux only.

mod echo;
mod http;
mod send;
mod streams;
mod system;
mod tls;
mod udp;

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let argument = |place: usize| arguments.get(place).map(String::as_str).ok_or("an argument is missing");
    system::die_with_parent();
    system::pin(argument(2)?.parse()?);
    match argument(1)? {
        "tcp" => streams::serve(tcp()?, echo::Echo::new),
        "unix" => streams::serve(unix(argument(3)?)?, echo::Echo::new),
        "accept" => streams::accept_and_close(tcp()?),
        "http" => streams::serve(tcp()?, http::Hello::new),
        "bulk-4" => bulk(4),
        "bulk-64" => bulk(64),
        "bulk-1024" => bulk(1024),
        "upload" => streams::serve(tcp()?, http::Upload::new),
        "send" => send::serve(argument(3)?.parse()?, argument(4)?.parse()?, argument(5)?.parse()?),
        "udp" => udp::serve(),
        "tls" => {
            let server = tls::Tls::new(argument(3)?, argument(4)?, argument(5)?, argument(6)?)?;
            server.serve(tcp()?)
        }
        other => return Err(format!("there is no baseline for {other:?}").into()),
    }?;
    Ok(())
}

fn bulk(kib: usize) -> std::io::Result<()> {
    streams::serve(tcp()?, |stream| http::Bulk::new(stream, kib * 1024))
}

fn tcp() -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{{\"port\": {}}}", listener.local_addr()?.port());
    Ok(listener)
}

fn unix(path: &str) -> std::io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    println!("{{\"port\": 0}}");
    Ok(listener)
}
