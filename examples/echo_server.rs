//! Sends back what it gets, to any number of clients.
//!
//! `cargo run --release --example echo_server --no-default-features -- 127.0.0.1:7000`
//!
//! A connection that waits holds no buffer: it waits for readiness first, and reads into the buffer of the thread
//! that happens to serve it. Ten thousand idle clients take a few megabytes, not ten thousand buffers.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::time::Duration;

use wakeloop::runtime::net::{TcpListener, TcpStream};
use wakeloop::runtime::time::sleep;
use wakeloop::runtime::{self, Runtime};

thread_local! {
    /// Larger than most messages. A read that does not fill it shows that there is no more for now, so the next
    /// read waits without trying.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; 64 * 1024]);
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening at {}", listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(runtime::spawn(echo(stream))),
                Err(error) => {
                    eprintln!("accept: {error}");
                    // If no descriptor is left, the next accept would fail at once too.
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    })
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        stream.readable().await?;
        let (received, rest) = match BUFFER.with_borrow_mut(|buffer| pass(&stream, buffer)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            passed => passed?,
        };
        if received == 0 {
            return Ok(());
        }
        // Nearly always empty. A client that does not read makes its own task wait, with a copy of its bytes.
        stream.write_all(&rest).await?;
    }
}

/// Reads once, and writes once what it read. Returns how many bytes came, and which of them the socket did not
/// take. Nothing here waits, so the thread's buffer is free again before the task may move to another thread.
fn pass(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<u8>)> {
    let received = stream.try_read(buffer)?;
    let sent = match stream.try_write(&buffer[..received]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        sent => sent?,
    };
    Ok((received, buffer[sent..received].to_vec()))
}
