//! An echo or HTTP server on each runtime: `server wakeloop|tokio|smol|threads echo|http`. Prints its port.
//!
//! The four are the same program: 16 KiB to read into, write what came; or the answer of examples/http_hello.rs
//! for every request. It ends when its standard input does.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

const BUFFER: usize = 16 << 10;
const MAX_HEAD: usize = 4096;
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";

fn main() -> io::Result<()> {
    allow_descriptors();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [runtime, protocol] = arguments.as_slice() else {
        eprintln!("usage: server wakeloop|tokio|smol|threads echo|http");
        std::process::exit(2);
    };
    let http = protocol == "http";
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(4096)?;
    let listener = TcpListener::from(socket);
    println!("{}", listener.local_addr()?.port());
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match runtime.as_str() {
        "wakeloop" => ours(listener, http),
        "tokio" => tokio(listener, http),
        "smol" => smol(listener, http),
        _ => threads(listener, http),
    }
}

/// Ten thousand connections and a few.
fn allow_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the struct they are given.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

/// What is to be written for the bytes that came; and what is left of an unfinished request.
fn answers(buffer: &mut [u8], filled: &mut usize) -> Vec<u8> {
    let mut answers = Vec::new();
    while let Some(end) = buffer[..*filled].windows(4).position(|four| four == b"\r\n\r\n") {
        buffer.copy_within(end + 4..*filled, 0);
        *filled -= end + 4;
        answers.extend_from_slice(ANSWER);
    }
    answers
}

/// The life of a connection, for streams that are read and written alike.
macro_rules! connection {
    ($stream:ident, $http:ident $(, $wait:tt)?) => {{
        if $http {
            let (mut buffer, mut filled) = ([0; MAX_HEAD], 0);
            loop {
                let n = $stream.read(&mut buffer[filled..])$(.$wait)?.unwrap_or(0);
                if n == 0 {
                    return;
                }
                filled += n;
                let answers = answers(&mut buffer, &mut filled);
                if filled == MAX_HEAD || $stream.write_all(&answers)$(.$wait)?.is_err() {
                    return;
                }
            }
        }
        let mut buffer = vec![0; BUFFER];
        loop {
            let n = $stream.read(&mut buffer)$(.$wait)?.unwrap_or(0);
            if n == 0 || $stream.write_all(&buffer[..n])$(.$wait)?.is_err() {
                return;
            }
        }
    }};
}

fn ours(listener: TcpListener, http: bool) -> io::Result<()> {
    use wakeloop::runtime::{self, Runtime, net};
    Runtime::new()?.block_on(async {
        let listener = net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            drop(runtime::spawn(async move { connection!(stream, http, await) }));
        }
    })
}

fn tokio(listener: TcpListener, http: bool) -> io::Result<()> {
    use ::tokio::io::{AsyncReadExt, AsyncWriteExt};
    ::tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = ::tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            drop(::tokio::spawn(async move { connection!(stream, http, await) }));
        }
    })
}

fn smol(listener: TcpListener, http: bool) -> io::Result<()> {
    use ::smol::io::{AsyncReadExt, AsyncWriteExt};
    let workers = thread::available_parallelism()?.get();
    // SAFETY: before any other thread reads the environment.
    unsafe { std::env::set_var("SMOL_THREADS", workers.to_string()) };
    ::smol::block_on(async {
        let listener = ::smol::Async::new(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            let mut stream = ::smol::net::TcpStream::from(stream);
            stream.set_nodelay(true)?;
            ::smol::spawn(async move { connection!(stream, http, await) }).detach();
        }
    })
}

fn threads(listener: TcpListener, http: bool) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        thread::Builder::new().stack_size(64 << 10).spawn(move || connection!(stream, http))?;
    }
}
