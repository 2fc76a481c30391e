//! The addresses of recent senders.

use std::cell::{Cell, UnsafeCell};
use std::net::{IpAddr, SocketAddr};

use socket2::SockAddr;

use crate::capi::sockaddr::{internet_to_python, to_python};
use crate::capi::{Raised, Ref};

/// How many senders are remembered: as many as this number of bits of a hash can name.
const PEERS: usize = 1 << PEER_BITS;
const PEER_BITS: u32 = 6;

/// A sender's address, and the tuple that it became.
#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    name: Ref,
}

/// The Internet addresses of recent senders: most datagrams come from a few peers, and a tuple costs about as much as a
/// copy of its datagram.
#[derive(Debug, Default)]
pub(super) struct Peers {
    table: UnsafeCell<Option<Box<[Option<Peer>; PEERS]>>>,
    /// Where in the table the last sender is.
    last: Cell<usize>,
}

impl Peers {
    #[allow(clippy::mut_from_ref, reason = "loop thread only; the borrow ends before Python runs")]
    #[inline(always)]
    fn table(&self) -> &mut Option<Box<[Option<Peer>; PEERS]>> {
        // SAFETY: see the reason above.
        unsafe { &mut *self.table.get() }
    }

    /// A sender's address as Python shows it.
    #[inline(always)]
    pub(super) fn name(&self, sender: &SockAddr) -> Result<Ref, Raised> {
        let Some(address) = sender.as_socket() else { return to_python(sender) };
        let place = place(&address);
        self.last.set(place);
        if let Some(table) = self.table()
            && let Some(peer) = &table[place]
            && peer.address == address
        {
            return Ok(peer.name.clone_ref());
        }
        let name = internet_to_python(&address)?;
        let peer = Peer { address, name: name.clone_ref() };
        let old = self.table().get_or_insert_with(|| Box::new([const { None }; PEERS]))[place].replace(peer);
        drop(old);
        Ok(name)
    }

    /// The address behind `name`, if that is the very tuple that the last sender was shown as: most answers go to the
    /// peer that has asked.
    #[inline(always)]
    pub(super) fn sender_named(&self, name: &Ref) -> Option<SockAddr> {
        let peer = self.table().as_ref()?[self.last.get()].as_ref()?;
        peer.name.is(name).then(|| peer.address.into())
    }
}

/// Where a peer is remembered: its numbers folded, and the best bits of a product of them.
#[inline(always)]
fn place(peer: &SocketAddr) -> usize {
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
