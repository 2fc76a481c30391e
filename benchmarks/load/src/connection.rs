//! One connection: it sends a request, reads the answer and compares it.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use wakeloop::runtime::net::{TcpStream, UdpSocket, UnixStream};
use wakeloop::runtime::time::timeout;

use crate::http::{self, Head};
use crate::pattern::Pattern;
use crate::stats::{Error, ErrorKind};
use crate::{Http, Target, Work};

/// A message up to this size is written before its answer is read. A longer one is written and read at the same time: a
/// server that echoes while it reads would otherwise wait for this client, and this client for the server.
const WRITTEN_FIRST: usize = 64 * 1024;
/// The first size of the buffer for HTTP answers.
const ANSWER: usize = 16 * 1024;

thread_local! {
    /// The bytes of the last read, until they have been compared.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The settings that all connections of a run share.
#[derive(Debug)]
pub(super) struct Plan {
    target: Target,
    timeout: Duration,
    request: Request,
}

#[derive(Debug)]
enum Request {
    Echo { pattern: Pattern, lines: bool },
    Http { head: Vec<u8>, pattern: Option<Pattern>, chunk: Option<NonZeroUsize>, expected: OnceLock<Vec<u8>> },
    Accept,
}

impl Plan {
    pub(super) fn new(target: &Target, work: &Work, timeout: Duration) -> Self {
        let request = match work {
            Work::Echo { size, lines } => {
                Request::Echo { pattern: Pattern::new(*size, *lines), lines: *lines }
            }
            Work::Http(Http { host, path, post_size, chunk, expect_body }) => Request::Http {
                head: http::request(host, path, *post_size),
                pattern: post_size.map(|size| Pattern::new(size, false)),
                chunk: *chunk,
                expected: expect_body.clone().map_or_else(OnceLock::new, OnceLock::from),
            },
            Work::Accept => Request::Accept,
        };
        Plan { target: target.clone(), timeout, request }
    }

    async fn connect(&self) -> Result<Stream, Error> {
        match timeout(self.timeout, Stream::connect(&self.target)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(Error::new(ErrorKind::Connect, error.to_string())),
            Err(_) => Err(Error::new(ErrorKind::ConnectTimeout, format!("after {:?}", self.timeout))),
        }
    }
}

/// A connection and its place in the pattern.
#[derive(Debug)]
pub(super) struct Connection {
    plan: Arc<Plan>,
    id: usize,
    sent: u64,
    /// `None` where each exchange makes its own.
    stream: Option<Stream>,
    request: Vec<u8>,
    /// For HTTP, where only the head says how long an answer is.
    answer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(plan: Arc<Plan>, id: usize) -> Result<Self, Error> {
        let stream = match plan.request {
            Request::Accept => None,
            _ => Some(plan.connect().await?),
        };
        Ok(Connection { plan, id, sent: 0, stream, request: Vec::new(), answer: Vec::new() })
    }

    /// Makes an exchange that may not take longer than the plan's timeout.
    pub(super) async fn exchange_in_time(&mut self) -> Result<usize, Error> {
        let limit = self.plan.timeout;
        match timeout(limit, self.exchange()).await {
            Ok(result) => result,
            Err(_) => Err(Error::new(ErrorKind::Stalled, format!("no answer within {limit:?}"))),
        }
    }

    /// Sends one request and checks the answer; returns the payload bytes received.
    pub(super) async fn exchange(&mut self) -> Result<usize, Error> {
        let Connection { plan, id, sent, stream, request, answer } = self;
        let number = *sent;
        *sent += 1;
        match (&plan.request, stream) {
            (Request::Echo { pattern, lines }, Some(stream)) => {
                let mut message = pattern.message(*id, number);
                if *lines {
                    request.clear();
                    request.extend_from_slice(message);
                    *request.last_mut().ok_or_else(|| Error::new(ErrorKind::Malformed, "an empty line"))? =
                        b'\n';
                    message = request;
                }
                echo(stream, message).await
            }
            (Request::Http { head, pattern, chunk, expected }, Some(stream)) => {
                let body = pattern.as_ref().map_or(&[][..], |pattern| pattern.message(*id, number));
                if let Some(chunk) = chunk {
                    stream.write_all(head).await?;
                    for part in body.chunks(chunk.get()) {
                        stream.write_all(part).await?;
                    }
                } else {
                    request.clear();
                    request.extend_from_slice(head);
                    request.extend_from_slice(body);
                    stream.write_all(request).await?;
                }
                let (answered, end) = read_answer(stream, answer).await?;
                let received = &answer[answered.length..end];
                let wanted = match (expected.get(), pattern) {
                    (None, Some(_)) => body,
                    (Some(wanted), _) => wanted,
                    (None, None) => expected.get_or_init(|| received.to_vec()),
                };
                if answered.status != 200 {
                    return Err(Error::new(ErrorKind::Status, answered.status.to_string()));
                }
                compare(wanted, received, 0)
            }
            _ => {
                let mut byte = [0];
                match plan.connect().await?.read(&mut byte).await? {
                    0 => Ok(0),
                    _ => Err(Error::new(ErrorKind::Mismatch, "data from a server that should close at once")),
                }
            }
        }
    }
}

async fn echo(stream: &Stream, message: &[u8]) -> Result<usize, Error> {
    let write = async { Ok(stream.write_all(message).await?) };
    if message.len() <= WRITTEN_FIRST {
        write.await?;
        receive(stream, message).await
    } else {
        Ok(both(write, receive(stream, message)).await?.1)
    }
}

/// Reads an answer and compares it as it arrives; returns how many bytes it had.
async fn receive(stream: &Stream, wanted: &[u8]) -> Result<usize, Error> {
    let mut received = 0;
    while received < wanted.len() {
        let left = &wanted[received..];
        // The buffer has room for one byte more than is missing. So bytes behind the answer are noticed, and the last
        // read does not fill the buffer: the runtime then knows without another system call that the socket is empty.
        received += stream
            .read_with(left.len() + 1, |part| match part.len() {
                0 => Err(Error::new(ErrorKind::ClosedEarly, format!("after {received} bytes"))),
                n => compare(&left[..n.min(left.len())], part, received),
            })
            .await??;
    }
    Ok(received)
}

/// Reads one whole answer, and nothing behind it, into the start of `buffer`; returns its head and its end.
async fn read_answer(stream: &Stream, buffer: &mut Vec<u8>) -> Result<(Head, usize), Error> {
    if buffer.is_empty() {
        buffer.resize(ANSWER, 0);
    }
    let (mut filled, mut head) = (0, None);
    loop {
        if head.is_none() {
            head = http::parse_head(&buffer[..filled])?;
        }
        if let Some(Head { length, body, .. }) = head {
            let end = length + body;
            if filled > end {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!("{} bytes behind an answer", filled - end),
                ));
            }
            // Room for one byte more than the answer, so that bytes behind it are noticed.
            buffer.resize(buffer.len().max(end + 1), 0);
            if let (true, Some(head)) = (filled == end, head.take()) {
                return Ok((head, end));
            }
        } else if filled == buffer.len() {
            buffer.resize(2 * filled, 0);
        }
        match stream.read(&mut buffer[filled..]).await? {
            0 => {
                return Err(Error::new(ErrorKind::ClosedEarly, format!("after {filled} bytes of an answer")));
            }
            n => filled += n,
        }
    }
}

/// Compares the bytes received behind the first `before` bytes of an answer; returns how many they are.
fn compare(wanted: &[u8], received: &[u8], before: usize) -> Result<usize, Error> {
    if wanted == received {
        return Ok(received.len());
    }
    let place = before + wanted.iter().zip(received).take_while(|(a, b)| a == b).count();
    let detail = format!("{} bytes for {}, different from byte {place} on", received.len(), wanted.len());
    Err(Error::new(ErrorKind::Mismatch, detail))
}

/// Polls both until they have ended, or until the first error.
async fn both<A, B>(
    first: impl Future<Output = Result<A, Error>>,
    second: impl Future<Output = Result<B, Error>>,
) -> Result<(A, B), Error> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_result, mut second_result) = (None, None);
    poll_fn(|context| {
        if first_result.is_none()
            && let Poll::Ready(result) = first.as_mut().poll(context)
        {
            first_result = Some(result?);
        }
        if second_result.is_none()
            && let Poll::Ready(result) = second.as_mut().poll(context)
        {
            second_result = Some(result?);
        }
        match (first_result.take(), second_result.take()) {
            (Some(first), Some(second)) => Poll::Ready(Ok((first, second))),
            (first, second) => {
                (first_result, second_result) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

/// TCP, Unix, or a connected datagram socket.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Udp(UdpSocket),
}

impl Stream {
    async fn connect(target: &Target) -> io::Result<Self> {
        Ok(match target {
            Target::Tcp(address) => {
                let stream = TcpStream::connect(*address).await?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Target::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
            Target::Udp(address) => {
                let any: IpAddr = match address {
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
                socket.connect(*address).await?;
                Stream::Udp(socket)
            }
        })
    }

    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer).await,
            Stream::Unix(stream) => stream.read(buffer).await,
            Stream::Udp(socket) => socket.recv(buffer).await,
        }
    }

    /// Reads up to `most` bytes into the buffer of the thread, and passes them to `take`. Ten thousand connections with a
    /// buffer each would not fit into any cache, and would make the load slower than the server.
    async fn read_with<R>(&self, most: usize, take: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        loop {
            match self {
                Stream::Tcp(stream) => stream.readable().await?,
                Stream::Unix(stream) => stream.readable().await?,
                Stream::Udp(socket) => socket.readable().await?,
            }
            let got = BUFFER.with_borrow_mut(|buffer| {
                if buffer.len() < most {
                    buffer.resize(most, 0);
                }
                let buffer = &mut buffer[..most];
                let got = match self {
                    Stream::Tcp(stream) => stream.try_read(buffer),
                    Stream::Unix(stream) => stream.try_read(buffer),
                    Stream::Udp(socket) => socket.try_recv(buffer),
                };
                match got {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                    got => got.map(Some),
                }
            })?;
            if let Some(got) = got {
                return Ok(BUFFER.with_borrow(|buffer| take(&buffer[..got])));
            }
        }
    }

    async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.write_all(data).await,
            Stream::Unix(stream) => stream.write_all(data).await,
            Stream::Udp(socket) => socket.send(data).await.map(drop),
        }
    }
}
