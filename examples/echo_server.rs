//! Sends back what it gets, to any number of clients.
//!
//! `cargo run --release --example echo_server --no-default-features -- 127.0.0.1:7000`

use std::io;

use wakeloop::runtime::net::{TcpListener, TcpStream};
use wakeloop::runtime::{self, Runtime};

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening at {}", listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(runtime::spawn(echo(stream))),
                Err(error) => eprintln!("accept: {error}"),
            }
        }
    })
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 16 * 1024];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            n => stream.write_all(&buffer[..n]).await?,
        }
    }
}
