//! The addresses of recent senders.

use std::cell::{Cell, UnsafeCell};

use crate::capi::sockaddr::SockAddr;
use crate::capi::{Raised, Ref};

/// How many senders are remembered: what four bits of a hash can name.
const PEERS: usize = 16;
/// The longest address that is: that of an IPv6 socket.
const KEY: usize = size_of::<libc::sockaddr_in6>();

#[derive(Debug)]
struct Peer {
    key: [u8; KEY],
    length: usize,
    name: Ref,
}

/// Senders that were here before, with the tuples that their addresses became: most datagrams come from a
/// few peers, and a tuple costs about as much as a copy of its datagram.
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
    pub(super) fn name(&self, family: i32, sender: &SockAddr) -> Result<Ref, Raised> {
        let bytes = sender.as_bytes();
        if family == libc::AF_UNIX || bytes.len() > KEY {
            return Ok(sender.as_python()?.unwrap_or_else(Ref::none));
        }
        let index = slot(bytes);
        self.last.set(index);
        if let Some(table) = self.table()
            && let Some(peer) = &table[index]
            && peer.length == bytes.len()
            && peer.key[..peer.length] == *bytes
        {
            return Ok(peer.name.clone_ref());
        }
        let name = sender.as_python()?.unwrap_or_else(Ref::none);
        let mut key = [0; KEY];
        key[..bytes.len()].copy_from_slice(bytes);
        let peer = Peer { key, length: bytes.len(), name: name.clone_ref() };
        let old = self.table().get_or_insert_with(|| Box::new([const { None }; PEERS]))[index].replace(peer);
        drop(old);
        Ok(name)
    }

    /// The address behind `name`, if that is the very tuple that the last sender was shown as: most answers go to the
    /// peer that has asked.
    #[inline(always)]
    pub(super) fn sender_named(&self, name: &Ref) -> Option<SockAddr> {
        let peer = self.table().as_ref()?[self.last.get()].as_ref()?;
        // SAFETY: the first `length` bytes of the key are an address that the kernel has written.
        peer.name
            .is(name)
            .then(|| unsafe { SockAddr::copied(peer.key.as_ptr().cast(), peer.length as libc::socklen_t) })
    }
}

/// Where a peer is remembered: its words folded, and the best bits of a product of them.
#[inline(always)]
fn slot(address: &[u8]) -> usize {
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word: u32, byte| word << 8 | u32::from(*byte));
    let folded = address.chunks_exact(4).fold(0, |hash: u32, bytes| hash.rotate_left(5) ^ word(bytes));
    folded.wrapping_mul(0x9e37_79b1) as usize >> 28
}
