//! Native objects that own a descriptor: transports and listeners.
//!
//! The loop never names a transport. A token leads to an entry of the table of descriptors, and that to a [`Source`].

use std::io;
use std::os::fd::RawFd;

use super::core::Core;
pub(crate) use super::core::fd_table::descriptor;
use super::core::fd_table::{Holder, Kind, SourceEntry};
use crate::capi::{Fatal, Ref};
use crate::reactor::{Readiness, Token};

/// A native object that the poller's events go to: a transport or a listener.
pub(crate) trait Source {
    /// Counts as a reader: `remove_reader` takes it away.
    const LISTENER: bool = false;

    /// Its descriptor is ready. Runs on the loop thread, outside any context.
    ///
    /// Ordinary errors are dealt with inside; `Err` leaves run_forever.
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal>;

    /// Is the descriptor still its own? Not if the program has closed the socket behind its back: the number is then
    /// free for another.
    fn has_descriptor(_object: &Ref) -> bool {
        true
    }
}

fn entry<S: Source>(object: Ref) -> Kind<Core> {
    Kind::Source(SourceEntry {
        holder: Holder::Owned(object),
        on_ready: S::on_ready,
        has_descriptor: S::has_descriptor,
        listener: S::LISTENER,
    })
}

impl Core {
    /// Puts a source behind a free descriptor and gives its token.
    ///
    /// # Errors
    /// `EBADF` for a number that is no open descriptor.
    pub(crate) fn insert_source<S: Source>(&self, fd: RawFd, object: Ref) -> io::Result<Token> {
        self.fds.insert(fd, entry::<S>(object))
    }

    /// Puts a source behind a descriptor whose registration goes on: its token stays alive.
    pub(crate) fn replace_source<S: Source>(&self, fd: RawFd, object: Ref) -> Option<Token> {
        self.fds.replace(fd, entry::<S>(object))
    }

    /// Takes a listener away from its descriptor, which the caller is about to close or to leave alone.
    pub(crate) fn remove_listener(&self, fd: RawFd) -> bool {
        let is_listener = self.fds.is_listener(fd);
        if is_listener {
            let listener = self.fds.remove(fd);
            self.deregister(fd);
            drop(listener);
        }
        is_listener
    }

    /// Takes a source away from its descriptor. `closing`: the caller is about to close the descriptor, so that it
    /// leaves the poller by itself.
    pub(crate) fn remove_source(&self, fd: RawFd, closing: bool) {
        let source = self.fds.remove(fd);
        if !closing {
            self.deregister(fd);
        }
        drop(source);
    }

    fn deregister(&self, fd: RawFd) {
        if self.is_parents() {
            return;
        }
        if self.is_polling() {
            self.io.defer(fd);
            self.inbox.wake();
        } else if let Some(poller) = self.poller() {
            // An error means that it is not registered: a descriptor that was closed has left the poller by itself.
            let _ = poller.deregister(fd);
        }
    }
}
