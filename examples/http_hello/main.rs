//! Answers every HTTP request with "Hello, World!": a minimal server for load generators.
//!
//! `cargo run --release --example http_hello --no-default-features -- 127.0.0.1:7002`, then `wrk -c 1000 -t 2
//! http://127.0.0.1:7002/`. The protocol is in `http.rs`, which knows no sockets. As in `echo_server`, a
//! connection that waits holds no buffer.

mod http;

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;

use http::{Connection, Next};
use wakeloop::runtime::net::{TcpListener, TcpStream};
use wakeloop::runtime::time::{sleep, timeout};
use wakeloop::runtime::{self, Runtime};

/// How long a refused client may take to receive the response.
const LINGER: Duration = Duration::from_secs(2);

/// The buffers for reading and for writing.
#[derive(Default)]
struct Buffers {
    read: Vec<u8>,
    answers: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers { read: vec![0; 16 * 1024], ..Buffers::default() });
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7002".to_owned());
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening at {}", listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(runtime::spawn(serve(stream))),
                Err(error) => {
                    eprintln!("accept: {error}");
                    // If no descriptor is left, the next accept would fail at once too.
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    })
}

async fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut connection = Connection::default();
    loop {
        stream.readable().await?;
        let turn = BUFFERS.with_borrow_mut(|buffers| turn(&stream, &mut connection, buffers));
        let (next, rest) = match turn {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            turn => turn?,
        };
        // Nearly always empty.
        stream.write_all(&rest).await?;
        if next == Next::Close {
            stream.shutdown(Shutdown::Write)?;
            return timeout(LINGER, read_to_end(&stream)).await?;
        }
    }
}

/// Reads once, and writes the responses once. Returns what to do next, and what the socket did not take.
fn turn(
    stream: &TcpStream,
    connection: &mut Connection,
    buffers: &mut Buffers,
) -> io::Result<(Next, Vec<u8>)> {
    let Buffers { read, answers } = buffers;
    let received = match stream.try_read(read)? {
        0 => return Err(ErrorKind::UnexpectedEof.into()),
        received => received,
    };
    answers.clear();
    let next = connection.feed(&read[..received], answers);
    let sent = match stream.try_write(answers) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        sent => sent?,
    };
    Ok((next, answers[sent..].to_vec()))
}

/// Closing a socket with unread bytes resets the connection, and the reset can overtake the last response.
async fn read_to_end(stream: &TcpStream) -> io::Result<()> {
    loop {
        stream.readable().await?;
        match BUFFERS.with_borrow_mut(|buffers| stream.try_read(&mut buffers.read)) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}
