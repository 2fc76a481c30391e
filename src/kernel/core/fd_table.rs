//! The table of descriptors: finds the object for an event of the poller.
//!
//! The table is indexed by file descriptor. A token is the descriptor and a generation in one word. If a descriptor is
//! closed and its number is used again within one batch of events, an event with the old generation is ignored.
//!
//! No method keeps the table borrowed after it returns. Removed objects are dropped by the caller, because a destructor
//! may call the table again.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::ffi;

use super::watched_fd::{Direction, WatchedFd};
use crate::capi::{Fatal, Ref, shared};
use crate::memory;
use crate::reactor::{Readiness, Token};

const _: () = assert!(size_of::<usize>() == 8, "a token packs two 32-bit numbers into one word");

/// Calls a source whose descriptor is ready. `C` is the loop's core.
pub(crate) type OnReady<C> = fn(&Ref, &C, Readiness) -> Result<(), Fatal>;

/// A native object that handles the events of its descriptor: a transport or a listener.
#[derive(Debug)]
pub(crate) struct SourceEntry<C> {
    pub(crate) object: SourceRef,
    pub(crate) on_ready: OnReady<C>,
    pub(crate) status: fn(&Ref) -> Status,
}

/// The kinds of transports and listeners, by the names that `loop.metrics()` has for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SourceKind {
    Tcp,
    Unix,
    Tls,
    Datagram,
    ReadPipe,
    WritePipe,
    /// It counts as a reader, so `remove_reader` removes it.
    Listener,
    /// Something else, such as a connection that is being made.
    #[default]
    Other,
}

impl SourceKind {
    /// The kinds that `loop.metrics()` counts.
    pub(crate) const COUNTED: [(SourceKind, &'static str); 7] = [
        (SourceKind::Tcp, "tcp"),
        (SourceKind::Unix, "unix"),
        (SourceKind::Tls, "tls"),
        (SourceKind::Datagram, "datagram"),
        (SourceKind::ReadPipe, "read_pipe"),
        (SourceKind::WritePipe, "write_pipe"),
        (SourceKind::Listener, "listener"),
    ];
}

/// The state of a source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Status {
    pub(crate) kind: SourceKind,
    /// It no longer has the descriptor, because the program has closed the socket itself. Another file may have the
    /// number.
    pub(crate) detached: bool,
    /// How many bytes are not sent yet.
    pub(crate) unsent: usize,
    /// The protocol was told to pause writing, and has itself paused reading.
    pub(crate) writing_paused: bool,
    pub(crate) reading_paused: bool,
    /// The descriptor of an alarm that the source has in the table too. It is removed with the source.
    pub(crate) alarm: Option<RawFd>,
}

#[derive(Debug)]
pub(crate) enum SourceRef {
    Owned(Ref),
    /// The object removes itself from the table before it is deallocated.
    Borrowed(*mut ffi::PyObject),
}

impl<C> SourceEntry<C> {
    /// The object. `None` if it is being deallocated by another thread, which will remove it. The result may be the last
    /// reference, so it is not dropped while the table is borrowed.
    #[inline(always)]
    fn get(&self) -> Option<Ref> {
        match &self.object {
            SourceRef::Owned(object) => Some(object.clone_ref()),
            // SAFETY: the object is in memory: see [`FdTable::set_owned`].
            SourceRef::Borrowed(object) => unsafe { shared::try_ref(*object) },
        }
    }
}

/// The owner of a descriptor's events.
#[derive(Debug)]
pub(crate) enum Kind<C> {
    Free,
    Source(SourceEntry<C>),
    Watched(Rc<WatchedFd<C>>),
}

/// The object that handles an event.
pub(crate) enum Target<C> {
    Source(Ref, OnReady<C>),
    Watched(RawFd, Rc<WatchedFd<C>>),
}

#[derive(Debug)]
struct Entry<C> {
    generation: u32,
    kind: Kind<C>,
}

impl<C> Entry<C> {
    fn replace(&mut self, kind: Kind<C>) -> Kind<C> {
        std::mem::replace(&mut self.kind, kind)
    }

    fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1) & 0x7fff_ffff;
    }
}

#[derive(Debug)]
pub(crate) struct FdTable<C> {
    entries: RefCell<Vec<Entry<C>>>,
    /// How many callbacks of `add_reader` and `add_writer` there are, without those of the loop itself.
    callbacks: Cell<usize>,
}

impl<C> FdTable<C> {
    pub(crate) fn new() -> FdTable<C> {
        FdTable { entries: RefCell::new(Vec::new()), callbacks: Cell::new(0) }
    }

    /// Makes `kind` the entry of a descriptor, and returns a new token for it.
    ///
    /// # Errors
    /// `EBADF` if the descriptor is not open. The table is as long as its largest descriptor, so an arbitrary number
    /// must not be inserted.
    pub(crate) fn insert(&self, fd: RawFd, kind: Kind<C>) -> io::Result<Token> {
        let mut entries = self.entries.borrow_mut();
        let index = fd as usize;
        if index >= entries.len() {
            // SAFETY: F_GETFD may be called with any number.
            if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                return Err(io::Error::last_os_error());
            }
            // The program chooses the number, with dup2().
            let more = index + 1 - entries.len();
            memory::grow(&mut *entries, more)?;
            entries.resize_with(index + 1, || Entry { generation: 0, kind: Kind::Free });
        }
        let entry = &mut entries[index];
        entry.next_generation();
        let (old, token) = (entry.replace(kind), pack(fd, entry.generation));
        drop(entries);
        self.forget(&old);
        Ok(token)
    }

    /// Replaces the entry of a descriptor that stays registered. Its token stays valid.
    pub(crate) fn replace(&self, fd: RawFd, kind: Kind<C>) -> Option<Token> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(fd as usize)?;
        let (old, token) = (entry.replace(kind), pack(fd, entry.generation));
        drop(entries);
        self.forget(&old);
        Some(token)
    }

    /// Removes the entry of a descriptor, and invalidates its token.
    pub(crate) fn remove(&self, fd: RawFd) -> Kind<C> {
        let old = self.entries.borrow_mut().get_mut(fd as usize).map_or(Kind::Free, |entry| {
            entry.next_generation();
            entry.replace(Kind::Free)
        });
        self.forget(&old);
        old
    }

    /// How many callbacks of `add_reader` and `add_writer` there are, without those of the loop itself.
    #[inline(always)]
    pub(crate) fn callbacks(&self) -> usize {
        self.callbacks.get()
    }

    /// Sets the waiter of one direction. Returns the previous one.
    pub(crate) fn set_waiter(
        &self,
        watched: &WatchedFd<C>,
        direction: Direction,
        waiter: Option<Ref>,
    ) -> Option<Ref> {
        let (before, side) = (watched.callbacks(), watched.side(direction));
        let old = side.take();
        side.set(waiter);
        watched.wake(direction).set(None);
        self.callbacks.set(self.callbacks.get() - before + watched.callbacks());
        old
    }

    /// Marks a descriptor that the loop itself watches. Its callbacks are no longer counted.
    pub(crate) fn set_internal(&self, fd: RawFd) {
        if let Some(watched) = self.watched(fd) {
            self.callbacks.set(self.callbacks.get() - watched.callbacks());
            watched.internal.set(true);
        }
    }

    fn forget(&self, old: &Kind<C>) {
        if let Kind::Watched(watched) = old {
            self.callbacks.set(self.callbacks.get() - watched.callbacks());
        }
    }

    /// The current token of a descriptor.
    pub(crate) fn token(&self, fd: RawFd) -> Token {
        pack(fd, self.entries.borrow().get(fd as usize).map_or(0, |entry| entry.generation))
    }

    /// The record of a watched descriptor.
    pub(crate) fn watched(&self, fd: RawFd) -> Option<Rc<WatchedFd<C>>> {
        match self.entries.borrow().get(fd as usize) {
            Some(Entry { kind: Kind::Watched(watched), .. }) => Some(Rc::clone(watched)),
            _ => None,
        }
    }

    /// The descriptor that is watched under this file object.
    pub(crate) fn watched_as(&self, file: *mut ffi::PyObject) -> Option<RawFd> {
        let of_file = |entry: &Entry<C>| matches!(&entry.kind, Kind::Watched(watched) if watched.is_of(file));
        self.entries.borrow().iter().position(of_file).map(|fd| fd as RawFd)
    }

    /// The transport or listener that has a descriptor.
    pub(crate) fn source(&self, fd: RawFd) -> Option<Ref> {
        let (object, status) = match self.entries.borrow().get(fd as usize) {
            Some(Entry { kind: Kind::Source(source), .. }) => (source.get()?, source.status),
            _ => return None,
        };
        (!status(&object).detached).then_some(object)
    }

    /// The states of all transports and listeners.
    pub(crate) fn statuses(&self) -> Vec<Status> {
        let found = |entry: &Entry<C>| match &entry.kind {
            Kind::Source(source) => Some((source.get()?, source.status)),
            _ => None,
        };
        let sources: Vec<_> = self.entries.borrow().iter().filter_map(found).collect();
        sources.iter().map(|(object, status)| status(object)).collect()
    }

    /// All transports and listeners.
    pub(crate) fn sources(&self) -> Vec<Ref> {
        let object = |entry: &Entry<C>| match &entry.kind {
            Kind::Source(source) => source.get(),
            _ => None,
        };
        self.entries.borrow().iter().filter_map(object).collect()
    }

    /// Decides whether the table owns the source of a token. A source that waits for nothing is not owned, so that it
    /// is deallocated when no other reference is left.
    ///
    /// # Safety
    /// `object` is that source, and removes itself from the table before it is deallocated.
    pub(crate) unsafe fn set_owned(&self, token: Token, object: &Ref, owned: bool) {
        let (fd, generation) = unpack(token);
        let mut entries = self.entries.borrow_mut();
        let Some(Entry { generation: current, kind: Kind::Source(source) }) = entries.get_mut(fd as usize)
        else {
            return;
        };
        if *current != generation || matches!(source.object, SourceRef::Owned(_)) == owned {
            return;
        }
        let reference =
            if owned { SourceRef::Owned(object.clone_ref()) } else { SourceRef::Borrowed(object.as_ptr()) };
        shared::allow_try_ref(object);
        let replaced = std::mem::replace(&mut source.object, reference);
        drop(entries);
        // The caller has a reference too, so this deallocates nothing.
        drop(replaced);
    }

    /// The state of the listener that has this descriptor, if there is one.
    pub(crate) fn listener(&self, fd: RawFd) -> Option<Status> {
        let (object, status) = match self.entries.borrow().get(fd as usize) {
            Some(Entry { kind: Kind::Source(source), .. }) => (source.get()?, source.status),
            _ => return None,
        };
        Some(status(&object)).filter(|status| status.kind == SourceKind::Listener)
    }

    /// The object that handles an event with this token; `None` if the token is out of date. The object is owned,
    /// because it may be removed from the table while it handles the event.
    #[inline(always)]
    pub(crate) fn target(&self, token: Token) -> Option<Target<C>> {
        let (fd, generation) = unpack(token);
        let entries = self.entries.borrow();
        let entry = entries.get(fd as usize).filter(|entry| entry.generation == generation)?;
        match &entry.kind {
            Kind::Source(source) => Some(Target::Source(source.get()?, source.on_ready)),
            Kind::Watched(watched) => Some(Target::Watched(fd, Rc::clone(watched))),
            Kind::Free => None,
        }
    }

    /// All descriptors with an entry.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let entries = self.entries.borrow();
        let used = entries.iter().enumerate().filter(|(_, entry)| !matches!(entry.kind, Kind::Free));
        used.map(|(fd, _)| fd as RawFd).collect()
    }

    /// For the garbage collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        for entry in self.entries.borrow().iter() {
            match &entry.kind {
                Kind::Source(SourceEntry { object: SourceRef::Owned(object), .. }) => visit(object),
                Kind::Source(_) | Kind::Free => {}
                Kind::Watched(watched) => watched.traverse(visit),
            }
        }
    }
}

fn pack(fd: RawFd, generation: u32) -> Token {
    Token((generation as usize) << 32 | fd as u32 as usize)
}

/// The descriptor of a token.
pub(crate) fn descriptor(token: Token) -> RawFd {
    unpack(token).0
}

fn unpack(token: Token) -> (RawFd, u32) {
    (token.0 as u32 as RawFd, (token.0 >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_holds_descriptor_and_generation() {
        for (fd, generation) in [(0, 0), (7, 1), (RawFd::MAX, 0x7fff_ffff)] {
            assert_eq!(unpack(pack(fd, generation)), (fd, generation));
        }
    }

    #[test]
    fn a_token_is_out_of_date_after_its_entry_was_removed() {
        let table: FdTable<()> = FdTable::new();
        let watched = || Kind::Watched(Rc::new(WatchedFd::new()));
        let first = table.insert(1, watched()).expect("descriptor 1 is open");
        assert!(table.target(first).is_some());
        drop(table.remove(1));
        assert!(table.target(first).is_none());
        let second = table.insert(1, watched()).expect("descriptor 1 is open");
        assert_ne!(first, second);
        assert!(table.target(first).is_none());
        assert_eq!(table.descriptors(), [1]);
    }

    #[test]
    fn inserting_a_descriptor_that_is_not_open_fails() {
        let table: FdTable<()> = FdTable::new();
        assert!(table.insert(RawFd::MAX, Kind::Free).is_err());
    }
}
