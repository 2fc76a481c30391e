//! An echo or HTTP server on each runtime: `server wakeloop|tokio|smol|threads echo|http`. Prints its port.
//!
//! The four are the same program, that of the examples `echo_server` and `http_hello`: a connection that waits holds no
//! buffer, but waits for readiness and then reads into the buffer of its thread. (With a thread per connection that
//! is a buffer per connection all the same.) It ends when its standard input does.

// Written for a server that has no tests of its own.
#[path = "../../../../examples/http_hello/http.rs"]
#[allow(dead_code)]
mod http;

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use http::{Connection, Next};

/// Larger than any message: after a read that fills its buffer, a second one has to ask whether there is more.
const BUFFER: usize = 64 << 10;

thread_local! {
    /// The bytes that were read, and the bytes to write.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::new((vec![0; BUFFER], Vec::new()));
}

fn main() -> io::Result<()> {
    wakeloop_load::allow_many_files().expect("a limit of our own");
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

/// The state of a connection between two reads.
enum Protocol {
    Echo,
    Http(Connection),
}

impl Protocol {
    fn new(http: bool) -> Protocol {
        if http { Protocol::Http(Connection::default()) } else { Protocol::Echo }
    }

    /// Makes one read and one write; returns whether to go on, and the bytes that were not written.
    fn turn(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<(bool, Vec<u8>)> {
        BUFFERS.with_borrow_mut(|(buffer, answers)| {
            let received = match read(buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                received => &buffer[..received],
            };
            let (goes_on, answer) = match self {
                Protocol::Echo => (true, received),
                Protocol::Http(connection) => {
                    answers.clear();
                    (connection.feed(received, answers) == Next::Read, &answers[..])
                }
            };
            let sent = match write(answer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                sent => sent?,
            };
            Ok((goes_on, answer[sent..].to_vec()))
        })
    }
}

/// The life of a connection, for streams whose methods have the same names.
macro_rules! connection {
    ($stream:ident, $http:ident) => {{
        let mut protocol = Protocol::new($http);
        while $stream.readable().await.is_ok() {
            match protocol.turn(|buffer| $stream.try_read(buffer), |data| $stream.try_write(data)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) | Ok((false, _)) => return,
                Ok((true, rest)) if rest.is_empty() => {}
                Ok((true, rest)) => {
                    if $stream.write_all(&rest).await.is_err() {
                        return;
                    }
                }
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
            drop(runtime::spawn(async move { connection!(stream, http) }));
        }
    })
}

fn tokio(listener: TcpListener, http: bool) -> io::Result<()> {
    use ::tokio::io::AsyncWriteExt;
    ::tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = ::tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            drop(::tokio::spawn(async move { connection!(stream, http) }));
        }
    })
}

/// smol's stream under the names of the others.
struct Smol(::smol::Async<std::net::TcpStream>);

impl Smol {
    async fn readable(&self) -> io::Result<()> {
        self.0.readable().await
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.0.get_ref();
        stream.read(buffer)
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let mut stream = self.0.get_ref();
        stream.write(data)
    }

    async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        ::smol::io::AsyncWriteExt::write_all(&mut &self.0, data).await
    }
}

fn smol(listener: TcpListener, http: bool) -> io::Result<()> {
    let workers = thread::available_parallelism()?.get();
    // SAFETY: before any other thread reads the environment.
    unsafe { std::env::set_var("SMOL_THREADS", workers.to_string()) };
    ::smol::block_on(async {
        let listener = ::smol::Async::new(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.get_ref().set_nodelay(true)?;
            let stream = Smol(stream);
            ::smol::spawn(async move { connection!(stream, http) }).detach();
        }
    })
}

fn threads(listener: TcpListener, http: bool) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let serve = move || {
            let mut protocol = Protocol::new(http);
            let write = |data: &[u8]| (&stream).write_all(data).map(|()| data.len());
            while let Ok((true, _)) = protocol.turn(|buffer| (&stream).read(buffer), write) {}
        };
        thread::Builder::new().stack_size(64 << 10).spawn(serve)?;
    }
}
