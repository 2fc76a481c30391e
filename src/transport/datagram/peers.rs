//! The addresses of recent senders.

use std::cell::{Cell, UnsafeCell};
use std::net::{IpAddr, SocketAddr};

use socket2::SockAddr;

use crate::capi::sockaddr::{internet_to_python, to_python};
use crate::capi::{Raised, Ref};

/// The size of the cache, a power of two: `PEER_BITS` bits of a hash are the index.
const PEERS: usize = 1 << PEER_BITS;
const PEER_BITS: u32 = 6;

/// A sender's address, and its Python tuple.
#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    name: Ref,
}

/// A cache of the tuples for recent senders (IPv4 and IPv6). Most datagrams come from a few peers, and creating a tuple
/// costs about as much as copying the datagram.
#[derive(Debug, Default)]
pub(super) struct Peers {
    table: UnsafeCell<Option<Box<[Option<Peer>; PEERS]>>>,
    /// The index of the last sender.
    last: Cell<usize>,
}

impl Peers {
    #[allow(clippy::mut_from_ref, reason = "loop thread only; the borrow ends before Python runs")]
    #[inline(always)]
    fn table(&self) -> &mut Option<Box<[Option<Peer>; PEERS]>> {
        // SAFETY: only the loop's thread calls this, and every caller ends the borrow before Python code runs.
        unsafe { &mut *self.table.get() }
    }

    /// A sender's address as a Python object.
    #[inline(always)]
    pub(super) fn name(&self, sender: &SockAddr) -> Result<Ref, Raised> {
        let Some(address) = sender.as_socket() else { return to_python(sender) };
        let index = index(&address);
        self.last.set(index);
        if let Some(table) = self.table()
            && let Some(peer) = &table[index]
            && peer.address == address
        {
            return Ok(peer.name.clone_ref());
        }
        let name = internet_to_python(&address)?;
        let peer = Peer { address, name: name.clone_ref() };
        let old = self.table().get_or_insert_with(|| Box::new([const { None }; PEERS]))[index].replace(peer);
        drop(old);
        Ok(name)
    }

    /// The address of `name`, if that is the tuple object of the last sender: most answers go to the peer that has just
    /// sent a request.
    #[inline(always)]
    pub(super) fn sender_named(&self, name: &Ref) -> Option<SockAddr> {
        let peer = self.table().as_ref()?[self.last.get()].as_ref()?;
        peer.name.is(name).then(|| peer.address.into())
    }
}

/// The index of a peer in the table: address and port are folded to 32 bits, multiplied, and the highest bits are
/// taken.
#[inline(always)]
fn index(peer: &SocketAddr) -> usize {
    let ip = match peer.ip() {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => {
            let half = ip.to_bits() as u64 ^ (ip.to_bits() >> 64) as u64;
            half as u32 ^ (half >> 32) as u32
        }
    };
    let folded = ip.rotate_left(16) ^ u32::from(peer.port());
    (folded.wrapping_mul(0x9e37_79b1) >> (u32::BITS - PEER_BITS)) as usize
}
