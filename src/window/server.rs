//! The thread of a window, its connections and their limits.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{SockAddr, SockRef, Type};

use super::address::{Address, Listener, Opened};
use super::answer::Answer;
use super::head::{self, Head};
use super::pages::Pages;
use crate::fork::Owner;
use crate::kernel::core::probe::registry::Watcher;
use crate::poison::unpoisoned;
use crate::runtime::net::{ReadBytes, TcpListener, TcpStream, UnixListener, UnixStream, WriteBytes};
use crate::runtime::sync::Notify;
use crate::runtime::time::{sleep, timeout};
use crate::runtime::{AbortHandle, Builder, NoThread, Runtime, SignalsBlocked, spawn};

/// How long a peer may take to send a head.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether a peer has taken more of an answer, and how often in a row it may not have.
const LOOK: Duration = Duration::from_secs(1);
const MOST_LOOKS: u32 = 5;
/// How much of an answer is sent at once. The kernel counts what a peer on a Unix socket has taken in such pieces.
const PIECE: usize = 3 << 10;
const MOST_CONNECTIONS: usize = 32;
/// How many requests a connection may send.
const MOST_REQUESTS: usize = 100;
/// How long to wait if nothing can be accepted, for example because no descriptor is left.
const REST: Duration = Duration::from_millis(100);
/// How much is read of a peer that is refused, and for how long: to close at once would take the answer back.
const LAST_BYTES: usize = 64 << 10;
const LAST_WAIT: Duration = Duration::from_secs(1);
/// How many descriptors are looked at where the system does not list those that are open.
const MOST_DESCRIPTORS: RawFd = 4096;

/// A window that answers.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) addresses: Vec<Address>,
    /// The names that its sockets have for the system: those of the listeners, and of the connections of each.
    names: Vec<SockAddr>,
    /// Copies of the sockets, which the window that takes the place of this one may have. Empty once it is closed.
    sockets: Mutex<Opened>,
    thread: Mutex<Option<(JoinHandle<()>, Watcher)>>,
    stop: Arc<Notify>,
    /// The process that has the thread.
    owner: Owner,
}

/// The state of the thread, which is dropped with it.
#[derive(Debug)]
struct Shared {
    pages: Pages,
    /// The oldest first.
    connections: Mutex<VecDeque<AbortHandle>>,
}

impl Server {
    /// Starts the thread. An error if it cannot listen to all sockets.
    pub(super) fn start(opened: Opened, pages: Pages) -> io::Result<Server> {
        let listeners = opened.try_clone()?.listeners;
        let names = opened.listeners.iter().map(|(_, listener)| listener.name());
        let names = names.collect::<io::Result<_>>()?;
        let runtime = Builder::new_current_thread().thread_name("wakeloop-window").build()?;
        let shared = Arc::new(Shared { pages, connections: Mutex::default() });
        let (stop, addresses) = (Arc::new(Notify::new()), opened.listeners.iter());
        let addresses = addresses.map(|(address, _)| address.clone()).collect();
        let (stopped, (listens, has_begun)) = (stop.clone(), mpsc::sync_channel(1));
        let _blocked = SignalsBlocked::new();
        let thread = thread::Builder::new()
            .name("wakeloop-window".to_owned())
            .spawn(move || serve(&runtime, &shared, &stopped, listeners, &listens))
            .map_err(|_| NoThread)?;
        if let Err(error) = has_begun.recv().unwrap_or_else(|_| Err(NoThread.into())) {
            // It has ended.
            let _ = thread.join();
            return Err(error);
        }
        Ok(Server {
            addresses,
            names,
            sockets: Mutex::new(opened),
            thread: Mutex::new(Some((thread, Watcher::new()))),
            stop,
            owner: Owner::this_process(),
        })
    }

    /// Ends the thread and its connections. May be called twice. The thread never waits for the GIL.
    pub(super) fn stop(&self) {
        if !self.owner.is_this_process() {
            return;
        }
        *unpoisoned(self.sockets.lock()) = Opened::default();
        // Locked until the thread has ended, so that a forked child knows.
        let mut thread = unpoisoned(self.thread.lock());
        if let Some((thread, _)) = thread.take() {
            self.stop.notify_one();
            // A panic was printed.
            let _ = thread.join();
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.owner.is_this_process() && !unpoisoned(self.sockets.lock()).listeners.is_empty()
    }

    /// The sockets for the window that takes the place of this one.
    pub(super) fn sockets(&self) -> io::Result<Opened> {
        unpoisoned(self.sockets.lock()).try_clone()
    }

    /// In a forked child: closes its copies of the sockets, so that nobody waits for an answer from it, and each
    /// connection ends with the parent's. The parent's thread may have accepted one at the moment of the fork, so they
    /// are known by their names alone.
    pub(super) fn forked(&self) {
        if self.thread.try_lock().is_ok_and(|thread| thread.is_none()) {
            // It was closed, and the program may have sockets with the same names now.
            return;
        }
        for descriptor in open_descriptors() {
            // SAFETY: only the name is asked for. A number that is not open any more is an error.
            let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let is_ours = |name: &SockAddr| self.names.iter().any(|ours| is_named(name, ours));
            let socket = SockRef::from(&borrowed);
            // The program may have a datagram socket of the same name.
            if socket.r#type().is_ok_and(|kind| kind == Type::STREAM)
                && socket.local_addr().is_ok_and(|name| is_ours(&name))
            {
                // SAFETY: it is a copy of a socket of the parent's window. Nothing of that is dropped in this process:
                // see `handle::forked`.
                unsafe { libc::close(descriptor) };
            }
        }
    }

    /// The process ends: removes the files of the sockets.
    pub(super) fn exit(&self) {
        if let Ok(sockets) = self.sockets.try_lock() {
            sockets.files.iter().for_each(|file| file.remove());
        }
    }
}

/// The numbers of the descriptors that are open, and perhaps more.
fn open_descriptors() -> Vec<RawFd> {
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    match fs::read_dir("/dev/fd") {
        Ok(entries) => entries.filter_map(number).collect(),
        Err(_) => (0..MOST_DESCRIPTORS).collect(),
    }
}

/// A socket with this name is the listener `ours`, or one of its connections.
fn is_named(name: &SockAddr, ours: &SockAddr) -> bool {
    match (name.as_socket(), ours.as_socket()) {
        (Some(name), Some(ours)) => {
            name.port() == ours.port() && (ours.ip().is_unspecified() || name.ip() == ours.ip())
        }
        (None, None) => name == ours,
        _ => false,
    }
}

fn serve(
    runtime: &Runtime,
    shared: &Arc<Shared>,
    stop: &Notify,
    listeners: Vec<(Address, Listener)>,
    listens: &SyncSender<io::Result<()>>,
) {
    runtime.block_on(async {
        let started: io::Result<()> =
            listeners.into_iter().try_for_each(|(address, listener)| shared.listen(address, listener));
        let fails = started.is_err();
        // It is awaited.
        let _ = listens.send(started);
        if !fails {
            stop.notified().await;
        }
    });
}

/// A connection.
trait Stream: ReadBytes + WriteBytes + AsRawFd + Send + Sync + 'static {
    fn end(&self) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Both)
    }
}

impl Stream for TcpStream {
    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Both)
    }
}

impl Shared {
    /// Begins to accept connections.
    fn listen(self: &Arc<Self>, address: Address, listener: Listener) -> io::Result<()> {
        let shared = self.clone();
        match (address, listener) {
            (_, Listener::Unix(listener)) => {
                let listener = UnixListener::from_std(listener)?;
                let accept = async move || Ok(listener.accept().await?.0);
                spawn(async move {
                    loop {
                        shared.take(accept().await, None).await;
                    }
                });
            }
            (Address::Tcp(name, address), Listener::Tcp(listener)) => {
                let listener = TcpListener::from_std(listener)?;
                let accept = async move || Ok(listener.accept().await?.0);
                spawn(async move {
                    loop {
                        shared.take(accept().await, Some((name.clone(), address))).await;
                    }
                });
            }
            (Address::Unix(_), Listener::Tcp(_)) => {}
        }
        Ok(())
    }

    /// Begins with a connection that was accepted, on a TCP address or on a Unix socket. `Host` has to be the name of
    /// the first; see [`head::parse`].
    async fn take<S: Stream>(self: &Arc<Self>, accepted: io::Result<S>, tcp: Option<(String, SocketAddr)>) {
        let Ok(stream) = accepted else { return sleep(REST).await };
        let shared = self.clone();
        let task = spawn(async move {
            // An error is the end of the connection.
            let _ = shared.converse(&stream, tcp.as_ref()).await;
            // A forked child may have a copy of the socket, so to close it would not be enough.
            let _ = stream.end();
        });
        let mut connections = unpoisoned(self.connections.lock());
        connections.retain(|connection| !connection.is_finished());
        connections.push_back(task.abort_handle());
        if connections.len() > MOST_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
    }

    /// Answers the requests of a connection.
    async fn converse<S: Stream>(&self, stream: &S, tcp: Option<&(String, SocketAddr)>) -> io::Result<()> {
        let name = tcp.map(|(name, _)| name.as_str());
        let mut data = Vec::new();
        for number in 1..=MOST_REQUESTS {
            let head = timeout(PATIENCE, read_head(stream, &mut data, name)).await;
            let (request, length) = match head.map_or(Ok(Head::Refused(408)), |head| head)? {
                Head::Complete(request, length) => (request, length),
                Head::Refused(408) | Head::Incomplete if data.is_empty() => return Ok(()),
                Head::Refused(status) => return refuse(stream, status, !data.starts_with(b"HEAD ")).await,
                Head::Incomplete => return Ok(()),
            };
            data.drain(..length);
            let keeps_alive = request.keeps_alive && number < MOST_REQUESTS;
            let answer = self.pages.get(&request, tcp.map(|(_, address)| *address));
            let answer = if request.takes_seconds() {
                crate::select! {
                    answer = answer => answer,
                    () = read_to_end(stream, &mut data) => return Ok(()),
                }
            } else {
                answer.await
            };
            send(stream, answer.into_bytes(request.wants_body, keeps_alive)).await?;
            if !keeps_alive {
                return end(stream).await;
            }
        }
        Ok(())
    }
}

/// Reads until there is a whole head, or none that is right. [`Head::Incomplete`] at the end of the stream.
async fn read_head<S: Stream>(stream: &S, data: &mut Vec<u8>, name: Option<&str>) -> io::Result<Head> {
    let mut buffer = [0; 2048];
    loop {
        if !data.is_empty() {
            match head::parse(data, name) {
                Head::Incomplete => {}
                head => return Ok(head),
            }
        }
        match stream.read(&mut buffer).await? {
            0 => return Ok(Head::Incomplete),
            count => data.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Reads what a peer sends that awaits an answer, until the peer ends its side, or has sent more than a head.
async fn read_to_end<S: Stream>(stream: &S, data: &mut Vec<u8>) {
    let mut buffer = [0; 2048];
    while data.len() <= head::LONGEST {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => data.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Sends an answer. A slow peer may take its time, but one that takes nothing for five seconds is given up.
async fn send<S: Stream>(stream: &S, answer: Vec<u8>) -> io::Result<()> {
    let mut rest = answer.as_slice();
    while !rest.is_empty() {
        let (mut looks, mut least) = (0, usize::MAX);
        let count = loop {
            let piece = &rest[..rest.len().min(PIECE)];
            match timeout(LOOK, stream.write(piece)).await {
                Ok(sent) => break sent?,
                Err(elapsed) => {
                    // The socket becomes writable when much of its buffer is empty. For a slow peer that may take long.
                    let unread = unread(stream).unwrap_or(usize::MAX);
                    looks = if unread < least { 1 } else { looks + 1 };
                    least = least.min(unread);
                    if looks == MOST_LOOKS {
                        return Err(elapsed.into());
                    }
                }
            }
        };
        rest = &rest[count..];
    }
    Ok(())
}

/// How much of what was sent the peer has not taken yet, in bytes. `None` where the system does not tell.
fn unread<S: Stream>(stream: &S) -> Option<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the stream has its descriptor open, and the request writes one `int`.
    let status = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if status < 0 { None } else { count.try_into().ok() }
}

async fn refuse<S: Stream>(stream: &S, status: u16, wants_body: bool) -> io::Result<()> {
    send(stream, Answer::refusal(status).into_bytes(wants_body, false)).await?;
    end(stream).await
}

/// Ends a connection whose peer may still send.
async fn end<S: Stream>(stream: &S) -> io::Result<()> {
    stream.finish()?;
    let drain = async {
        let (mut buffer, mut left) = ([0; 2048], LAST_BYTES);
        while left > 0 {
            match stream.read(&mut buffer).await? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        Ok(())
    };
    timeout(LAST_WAIT, drain).await?
}
