//! Turns the targets that users name into socket addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::resolver::addresses_of;
use crate::runtime::blocking::{NoThread, spawn_blocking};
use crate::runtime::task::JoinError;

/// Where to connect or bind: an address, or a name, which is looked up on the blocking pool.
///
/// Converts from `SocketAddr`, `(IpAddr, u16)`, `"host:port"` and `(host, port)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// A known address.
    Address(SocketAddr),
    /// A name to be looked up.
    Name {
        /// Host name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// `host:port`, to be looked up.
    Text(String),
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Target {
        Target::Address(address)
    }
}

impl From<(IpAddr, u16)> for Target {
    fn from(address: (IpAddr, u16)) -> Target {
        Target::Address(address.into())
    }
}

impl From<&str> for Target {
    fn from(text: &str) -> Target {
        text.parse().map_or_else(|_| Target::Text(text.to_owned()), Target::Address)
    }
}

impl From<String> for Target {
    fn from(text: String) -> Target {
        text.parse().map_or_else(|_| Target::Text(text), Target::Address)
    }
}

impl From<(&str, u16)> for Target {
    fn from((host, port): (&str, u16)) -> Target {
        Target::from((host.to_owned(), port))
    }
}

impl From<(String, u16)> for Target {
    fn from((host, port): (String, u16)) -> Target {
        match host.parse::<IpAddr>() {
            Ok(address) => Target::Address((address, port).into()),
            Err(_) => Target::Name { host, port },
        }
    }
}

impl Target {
    /// Returns all addresses, in the resolver's order; at least one.
    ///
    /// # Errors
    /// If the name does not resolve. The error wraps a [`LookupError`](super::LookupError) if a lookup was
    /// made.
    pub async fn resolve(self) -> io::Result<Vec<SocketAddr>> {
        let addresses = match self {
            Target::Address(address) => return Ok(vec![address]),
            Target::Name { host, port } => look_up(host, port).await?,
            Target::Text(text) => {
                let (host, port) = text.rsplit_once(':').ok_or_else(|| invalid("invalid socket address"))?;
                let port = port.parse().map_err(|_| invalid("invalid port value"))?;
                look_up(host.to_owned(), port).await?
            }
        };
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(addresses)
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

async fn look_up(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    match spawn_blocking(move || addresses_of(&host, port)).await {
        Ok(addresses) => addresses,
        Err(JoinError::Cancelled) => Err(NoThread.into()),
        Err(JoinError::Panic(_)) => Err(io::Error::other("the resolver panicked")),
    }
}

/// Tries one address after the other. The error is that of the last one.
pub(super) async fn first_that<T>(
    addresses: Vec<SocketAddr>,
    mut attempt: impl AsyncFnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for address in addresses {
        match attempt(address).await {
            Ok(value) => return Ok(value),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}
