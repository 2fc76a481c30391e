//! What a token leads to.
//!
//! The table is indexed by file descriptor, the token is descriptor and generation in one word: an event
//! for a descriptor that was closed and taken by a new owner within the same batch carries the old
//! generation and is dropped.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::os::fd::RawFd;

use pyo3::ffi;

use super::core::Core;
use super::debug;
use super::watch::Watch;
use crate::capi::{Fatal, Ref};
use crate::reactor::{Readiness, Token};

const _: () = assert!(size_of::<usize>() == 8, "a token packs two 32-bit numbers into one word");

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

/// A type-erased [`Source`], mostly owned.
#[derive(Debug)]
pub(crate) struct SourceRef {
    object: Holder,
    on_ready: fn(&Ref, &Core, Readiness) -> Result<(), Fatal>,
    has_descriptor: fn(&Ref) -> bool,
    listener: bool,
}

#[derive(Debug)]
enum Holder {
    Owned(Ref),
    /// The object takes itself out of the table before it dies.
    Borrowed(*mut ffi::PyObject),
}

impl SourceRef {
    pub(crate) fn new<S: Source>(object: Ref) -> SourceRef {
        SourceRef {
            object: Holder::Owned(object),
            on_ready: S::on_ready,
            has_descriptor: S::has_descriptor,
            listener: S::LISTENER,
        }
    }

    #[inline(always)]
    fn get(&self) -> Ref {
        match &self.object {
            Holder::Owned(object) => object.clone_ref(),
            // SAFETY: GIL held. The object lives: see [`FdTable::keep`].
            Holder::Borrowed(object) => unsafe { Ref::from_borrowed(*object) },
        }
    }
}

impl Core {
    /// Puts a source behind a free descriptor and gives its token.
    ///
    /// # Errors
    /// As [`FdTable::insert`].
    pub(crate) fn insert_source<S: Source>(&self, fd: RawFd, object: Ref) -> io::Result<Token> {
        self.fds.insert(fd, Kind::Source(SourceRef::new::<S>(object)))
    }

    /// Puts a source behind a descriptor whose registration goes on: its token stays alive.
    pub(crate) fn replace_source<S: Source>(&self, fd: RawFd, object: Ref) -> Option<Token> {
        self.fds.replace(fd, Kind::Source(SourceRef::new::<S>(object)))
    }
}

/// What stands behind a descriptor.
#[derive(Debug)]
pub(crate) enum Kind {
    Free,
    Source(SourceRef),
    Watch(Box<Watch>),
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    kind: Kind,
}

/// The table of descriptors.
#[derive(Debug)]
pub(crate) struct FdTable {
    entries: UnsafeCell<Vec<Entry>>,
    /// How many callbacks of the program's wait behind watches.
    callbacks: Cell<usize>,
}

impl FdTable {
    pub(crate) fn new() -> FdTable {
        FdTable { entries: UnsafeCell::new(Vec::new()), callbacks: Cell::new(0) }
    }

    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; no caller holds the borrow across Python code")]
    fn entries(&self) -> &mut Vec<Entry> {
        // SAFETY: GIL held; every method of this type ends its borrow before it returns, and drops what it
        // removed only through its caller.
        unsafe { &mut *self.entries.get() }
    }

    /// Puts something behind a free descriptor and gives its token.
    ///
    /// # Errors
    /// `EBADF` for a number that is no open descriptor: the table is as long as the largest one, and a number
    /// out of the blue must not make it long.
    pub(crate) fn insert(&self, fd: RawFd, kind: Kind) -> io::Result<Token> {
        let entries = self.entries();
        let index = fd as usize;
        if index >= entries.len() {
            // SAFETY: asks for a flag, with any number.
            if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                return Err(io::Error::last_os_error());
            }
            entries.resize_with(index + 1, || Entry { generation: 0, kind: Kind::Free });
        }
        let entry = &mut entries[index];
        entry.generation = entry.generation.wrapping_add(1) & 0x7fff_ffff;
        let old = std::mem::replace(&mut entry.kind, kind);
        let token = pack(fd, entry.generation);
        self.forget(&old);
        drop(old);
        Ok(token)
    }

    /// Puts something else behind a descriptor whose registration goes on: its token stays alive.
    pub(crate) fn replace(&self, fd: RawFd, kind: Kind) -> Option<Token> {
        let entry = self.entries().get_mut(fd as usize)?;
        let (old, token) = (std::mem::replace(&mut entry.kind, kind), pack(fd, entry.generation));
        self.forget(&old);
        drop(old);
        Some(token)
    }

    /// Takes away what is behind a descriptor; its token is dead from now on.
    pub(crate) fn remove(&self, fd: RawFd) -> Kind {
        match self.entries().get_mut(fd as usize) {
            Some(entry) => {
                entry.generation = entry.generation.wrapping_add(1) & 0x7fff_ffff;
                let old = std::mem::replace(&mut entry.kind, Kind::Free);
                self.forget(&old);
                old
            }
            None => Kind::Free,
        }
    }

    /// How many callbacks of the program's wait behind watches.
    #[inline(always)]
    pub(crate) fn callbacks(&self) -> usize {
        self.callbacks.get()
    }

    /// A watch in the table has `now` callbacks instead of `before`.
    pub(super) fn count_callbacks(&self, before: usize, now: usize) {
        self.callbacks.set(self.callbacks.get() - before + now);
    }

    fn forget(&self, old: &Kind) {
        if let Kind::Watch(watch) = old {
            self.count_callbacks(watch.callbacks(), 0);
        }
    }

    /// The current token of a descriptor.
    pub(crate) fn token(&self, fd: RawFd) -> Token {
        pack(fd, self.entries().get(fd as usize).map_or(0, |entry| entry.generation))
    }

    /// The watch behind a descriptor, if that is what is there.
    pub(crate) fn watch(&self, fd: RawFd) -> Option<&Watch> {
        match self.entries().get(fd as usize) {
            Some(Entry { kind: Kind::Watch(watch), .. }) => Some(watch),
            _ => None,
        }
    }

    /// The descriptor that is watched for this file object.
    pub(crate) fn watched_as(&self, file: *mut ffi::PyObject) -> Option<RawFd> {
        let of_file = |entry: &Entry| matches!(&entry.kind, Kind::Watch(watch) if watch.is_of(file));
        self.entries().iter().position(of_file).map(|fd| fd as RawFd)
    }

    /// The native object behind a descriptor, if that is what is there.
    pub(crate) fn source(&self, fd: RawFd) -> Option<Ref> {
        match self.entries().get(fd as usize) {
            Some(Entry { kind: Kind::Source(source), .. }) => {
                let (object, has_descriptor) = (source.get(), source.has_descriptor);
                has_descriptor(&object).then_some(object)
            }
            _ => None,
        }
    }

    /// All native objects.
    pub(crate) fn sources(&self) -> Vec<Ref> {
        let entries = self.entries().iter();
        entries
            .filter_map(
                |entry| if let Kind::Source(source) = &entry.kind { Some(source.get()) } else { None },
            )
            .collect()
    }

    /// The table no longer keeps the source behind a token alive, or does so again. For an object that waits for
    /// nothing at the moment: if nobody else has it, it may go.
    ///
    /// # Safety
    /// `object` is that source. It takes itself out of the table before it dies.
    pub(crate) unsafe fn keep(&self, token: Token, object: &Ref, keep: bool) {
        let (fd, generation) = unpack(token);
        let Some(Entry { generation: current, kind: Kind::Source(source) }) =
            self.entries().get_mut(fd as usize)
        else {
            return;
        };
        if *current != generation || matches!(source.object, Holder::Owned(_)) == keep {
            return;
        }
        let holder = if keep { Holder::Owned(object.clone_ref()) } else { Holder::Borrowed(object.as_ptr()) };
        // The caller has the object: nothing dies here.
        drop(std::mem::replace(&mut source.object, holder));
    }

    /// Is a listener behind the descriptor?
    pub(crate) fn is_listener(&self, fd: RawFd) -> bool {
        matches!(self.entries().get(fd as usize), Some(Entry { kind: Kind::Source(source), .. }) if source.listener)
    }

    /// Delivers one event. A token of an earlier generation leads nowhere.
    #[inline(always)]
    pub(crate) fn dispatch(&self, core: &Core, token: Token, readiness: Readiness) -> Result<(), Fatal> {
        let (fd, generation) = unpack(token);
        let Some(entry) = self.entries().get(fd as usize).filter(|entry| entry.generation == generation)
        else {
            return Ok(());
        };
        match &entry.kind {
            Kind::Source(source) => {
                // An owned reference lives through the dispatch: the source may close itself in it.
                let (object, on_ready) = (source.get(), source.on_ready);
                if core.debug.get() {
                    return debug::native(core, &object, || on_ready(&object, core, readiness));
                }
                on_ready(&object, core, readiness)
            }
            Kind::Watch(watch) => watch.on_ready(core, fd, readiness),
            Kind::Free => Ok(()),
        }
    }

    /// Every descriptor that has something behind it.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let entries = self.entries().iter().enumerate();
        entries.filter(|(_, entry)| !matches!(entry.kind, Kind::Free)).map(|(fd, _)| fd as RawFd).collect()
    }

    /// For the collector.
    ///
    /// # Safety
    /// Called by the collector; `visit` runs no Python code.
    pub(crate) unsafe fn traverse(&self, visit: &mut dyn FnMut(*mut ffi::PyObject) -> i32) -> i32 {
        for entry in self.entries().iter() {
            let result = match &entry.kind {
                Kind::Free => 0,
                Kind::Source(SourceRef { object: Holder::Owned(object), .. }) => visit(object.as_ptr()),
                Kind::Source(_) => 0,
                // SAFETY: as for this function.
                Kind::Watch(watch) => unsafe { watch.traverse(visit) },
            };
            if result != 0 {
                return result;
            }
        }
        0
    }
}

fn pack(fd: RawFd, generation: u32) -> Token {
    Token((generation as usize) << 32 | fd as u32 as usize)
}

/// The descriptor that a token was made for.
pub(crate) fn descriptor(token: Token) -> RawFd {
    unpack(token).0
}

fn unpack(token: Token) -> (RawFd, u32) {
    (token.0 as u32 as RawFd, (token.0 >> 32) as u32)
}
