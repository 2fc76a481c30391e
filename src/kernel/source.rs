//! Native objects that own a descriptor: transports and listeners.
//!
//! The loop does not know transports. A token identifies an entry of the table of descriptors, whose object implements
//! [`Source`].

use std::io;
use std::os::fd::RawFd;

use super::core::Core;
pub(crate) use super::core::fd_table::descriptor;
use super::core::fd_table::{Kind, SourceEntry, SourceRef};
pub(crate) use super::core::fd_table::{SourceKind, Status};
use crate::capi::{Fatal, Ref};
use crate::reactor::{Readiness, Token};

/// A native object that handles the poller's events: a transport or a listener.
pub(crate) trait Source {
    /// Handles an event. Runs on the loop's thread, outside of any context.
    ///
    /// It handles ordinary errors itself. An `Err` leaves run_forever.
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal>;

    /// The state of the object. Runs no Python code.
    fn status(_object: &Ref) -> Status {
        Status::default()
    }
}

fn entry<S: Source>(object: Ref) -> Kind<Core> {
    Kind::Source(SourceEntry { object: SourceRef::Owned(object), on_ready: S::on_ready, status: S::status })
}

impl Core {
    /// Makes a source the entry of a descriptor, and returns its token.
    ///
    /// # Errors
    /// `EBADF` if the descriptor is not open.
    pub(crate) fn insert_source<S: Source>(&self, fd: RawFd, object: Ref) -> io::Result<Token> {
        self.fds.insert(fd, entry::<S>(object))
    }

    /// Replaces the source of a descriptor that stays registered. Its token stays valid.
    pub(crate) fn replace_source<S: Source>(&self, fd: RawFd, object: Ref) -> Option<Token> {
        self.fds.replace(fd, entry::<S>(object))
    }

    /// Removes the listener of a descriptor. Returns false if there was none.
    pub(crate) fn remove_listener(&self, fd: RawFd) -> bool {
        let Some(status) = self.fds.listener(fd) else { return false };
        for fd in [Some(fd), status.alarm].into_iter().flatten() {
            self.remove_source(fd, false);
        }
        true
    }

    /// Removes the source of a descriptor. With `closing` the caller is about to close the descriptor, which removes it
    /// from the poller.
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
        } else if let Some(poller) = self.poller_to_change() {
            // It fails if the descriptor was closed, because closing has removed it from the poller.
            let _ = poller.deregister(fd);
        }
    }
}
