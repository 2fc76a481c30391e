//! The sockets of one listener: a name may have several addresses, and "all interfaces" is one address of each
//! family.

use std::collections::HashSet;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use socket2::{Domain, Protocol, Socket, Type};

use crate::runtime::net::{self, Target};

/// How many connections the kernel keeps ready for `accept`.
const BACKLOG: i32 = 1024;
/// How many free ports of the first address to try, until one is free on the other addresses too.
const ATTEMPTS: usize = 16;

/// The listening sockets, of which there is at least one.
#[derive(Debug)]
pub(super) struct Sockets {
    sockets: Box<[net::TcpListener]>,
    /// The socket at which the next accept starts, so that a busy address does not starve the others.
    turn: AtomicUsize,
}

impl Sockets {
    /// Listens at every address of `host`, or on all interfaces. Also returns the first address. Port 0 means one
    /// free port, the same for all addresses.
    pub(super) async fn bind(host: Option<String>, port: u16) -> io::Result<(Sockets, SocketAddr)> {
        let mut addresses: Vec<SocketAddr> = match host {
            Some(host) => Target::from((host, port)).resolve().await?,
            None => {
                vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
            }
        };
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(*address));
        let attempts = if port == 0 && addresses.len() > 1 { ATTEMPTS } else { 1 };
        for _ in 1..attempts {
            match listen(&addresses) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                other => return other,
            }
        }
        listen(&addresses)
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.sockets.iter().map(AsRawFd::as_raw_fd)
    }

    /// The next connection at any of the addresses.
    pub(super) async fn accept(&self) -> io::Result<std::net::TcpStream> {
        if let [only] = &*self.sockets {
            return only.accept_std().await.map(|(stream, _)| stream);
        }
        // Relaxed: it does not matter where an accept starts.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.sockets.len();
        let (late, early) = self.sockets.split_at(turn);
        let mut waiting: Vec<_> =
            early.iter().chain(late).map(|socket| Box::pin(socket.accept_std())).collect();
        let accepted = poll_fn(|context| {
            let mut polled = waiting.iter_mut().map(|accept| accept.as_mut().poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        accepted.await.map(|(stream, _)| stream)
    }

    /// Refuses connections from now on. Tasks that wait hold the sockets a little longer.
    pub(super) fn shut_down(&self) {
        for descriptor in self.descriptors() {
            // SAFETY: the descriptor of an open socket of this listener. On a system that cannot shut down listeners
            // the call fails.
            unsafe { libc::shutdown(descriptor, libc::SHUT_RDWR) };
        }
    }
}

/// Listens at all of these addresses. An address that is not local, or whose family the system lacks, is left out,
/// unless no other remains.
fn listen(addresses: &[SocketAddr]) -> io::Result<(Sockets, SocketAddr)> {
    let mut sockets = Vec::with_capacity(addresses.len());
    let mut first: Option<SocketAddr> = None;
    let mut missing = io::ErrorKind::AddrNotAvailable.into();
    for &(mut address) in addresses {
        if let Some(first) = first.filter(|_| address.port() == 0) {
            address.set_port(first.port());
        }
        match listen_at(address) {
            Ok((socket, local)) => {
                sockets.push(socket);
                first = first.or(Some(local));
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT)) => {
                missing = error;
            }
            Err(error) => return Err(error),
        }
    }
    let first = first.ok_or(missing)?;
    Ok((Sockets { sockets: sockets.into(), turn: AtomicUsize::new(0) }, first))
}

fn listen_at(address: SocketAddr) -> io::Result<(net::TcpListener, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // As in asyncio, IPv4 has a socket of its own.
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = net::TcpListener::from_std(socket.into())?;
    let local = listener.local_addr()?;
    Ok((listener, local))
}
