//! Answers every HTTP request with "Hello, World!": the smallest server that a load generator takes seriously.
//!
//! `cargo run --release --example http_hello --no-default-features -- 127.0.0.1:7002`, then
//! `wrk -c 1000 -t 2 http://127.0.0.1:7002/`.

use std::io;

use wakeloop::runtime::net::{TcpListener, TcpStream};
use wakeloop::runtime::{self, Runtime};

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
/// A request head longer than this is refused.
const MAX_HEAD: usize = 4096;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7002".to_owned());
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening at {}", listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(runtime::spawn(serve(stream))),
                Err(error) => eprintln!("accept: {error}"),
            }
        }
    })
}

async fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut filled) = ([0; MAX_HEAD], 0);
    loop {
        let n = stream.read(&mut buffer[filled..]).await?;
        if n == 0 {
            return Ok(());
        }
        filled += n;
        // Requests end with an empty line; several may have come at once.
        let mut answers = Vec::new();
        while let Some(end) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            buffer.copy_within(end + 4..filled, 0);
            filled -= end + 4;
            answers.extend_from_slice(ANSWER);
        }
        if filled == MAX_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.write_all(&answers).await?;
    }
}
