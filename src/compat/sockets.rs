//! Finds patches of Python's sockets: programs replace methods of `socket.socket`, or give the loop objects of other
//! classes.
//!
//! Native code makes the system calls of these methods itself, so it would never call a replacement. It asks here
//! first, and leaves an object with other methods to asyncio's code. What Python code has to know before it makes a
//! connection, a listener or a transport is in `wakeloop._asyncio.compat`.

use super::class::Class;
use crate::capi::error::unless_raised;
use crate::capi::imports::imports;
use crate::capi::once::Once;
use crate::capi::{Raised, Ref};

/// The things that native code does without calling the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// `loop.sock_accept`.
    Accept,
    /// The other methods `loop.sock_*`.
    Exchange,
    /// Sending datagrams.
    Datagrams,
}

/// The methods that asyncio calls, for each [`Use`].
const METHODS: [&[&str]; 3] = [
    &["accept", "fileno"],
    &["fileno", "recv", "recv_into", "recvfrom", "recvfrom_into", "send", "sendto"],
    &["send", "sendto"],
];

static CLASSES: Once<[Class; METHODS.len()]> = Once::new();

/// Records the methods. Called once, by the module's initialisation.
pub(crate) fn init() -> Result<(), Raised> {
    let [accept, exchange, datagrams] =
        METHODS.map(|methods| Class::of(imports().socket.clone_ref(), methods, false));
    CLASSES.set([accept?, exchange?, datagrams?]);
    Ok(())
}

/// Has `socket.socket` its own methods for this use?
#[inline(always)]
pub(crate) fn are_unpatched(used: Use) -> bool {
    CLASSES.get().is_some_and(|classes| classes[used as usize].is_unpatched())
}

/// Does the object use the methods of `socket.socket` that native code replaces? It may be of a subclass.
#[inline(always)]
pub(crate) fn is_native(used: Use, socket: &Ref) -> bool {
    let Some(classes) = CLASSES.get() else { return false };
    let class = &classes[used as usize];
    class.is_unpatched() && (class.is_class_of(socket) || is_native_subclass(class, socket))
}

#[cold]
fn is_native_subclass(class: &Class, socket: &Ref) -> bool {
    class.has_instance(socket) && unless_raised(class.is_used_by(socket)) == Some(true)
}
