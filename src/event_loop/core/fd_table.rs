//! The table of descriptors: what an event leads to.
//!
//! It is indexed by file descriptor. A token is descriptor and generation in one word: an event for a descriptor that was
//! closed and taken by a new owner within the same batch carries the old generation and leads nowhere.
//!
//! No borrow of the table outlives a method, and a caller drops what was removed: destructors may come back here.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::ffi;

use super::watched_fd::{Direction, WatchedFd};
use crate::capi::{Fatal, Ref};
use crate::reactor::{Readiness, Token};

const _: () = assert!(size_of::<usize>() == 8, "a token packs two 32-bit numbers into one word");

/// Calls a source whose descriptor is ready. `C` is the loop's core.
pub(crate) type OnReady<C> = fn(&Ref, &C, Readiness) -> Result<(), Fatal>;

/// A native object that events go to, mostly owned: a transport or a listener.
#[derive(Debug)]
pub(crate) struct SourceEntry<C> {
    pub(crate) holder: Holder,
    pub(crate) on_ready: OnReady<C>,
    pub(crate) has_descriptor: fn(&Ref) -> bool,
    pub(crate) listener: bool,
}

#[derive(Debug)]
pub(crate) enum Holder {
    Owned(Ref),
    /// The object takes itself out of the table before it dies.
    Borrowed(*mut ffi::PyObject),
}

impl<C> SourceEntry<C> {
    #[inline(always)]
    fn get(&self) -> Ref {
        match &self.holder {
            Holder::Owned(object) => object.clone_ref(),
            // SAFETY: GIL held. The object lives: see [`FdTable::keep`].
            Holder::Borrowed(object) => unsafe { Ref::from_borrowed(*object) },
        }
    }
}

/// What stands behind a descriptor.
#[derive(Debug)]
pub(crate) enum Kind<C> {
    Free,
    Source(SourceEntry<C>),
    Watched(Rc<WatchedFd>),
}

/// What an event leads to.
pub(crate) enum Target<C> {
    Source(Ref, OnReady<C>),
    Watched(RawFd, Rc<WatchedFd>),
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
    /// How many callbacks of the program wait for watched descriptors.
    callbacks: Cell<usize>,
}

impl<C> FdTable<C> {
    pub(crate) fn new() -> FdTable<C> {
        FdTable { entries: RefCell::new(Vec::new()), callbacks: Cell::new(0) }
    }

    /// Puts something behind a free descriptor and gives its token.
    ///
    /// # Errors
    /// `EBADF` for a number that is no open descriptor: the table is as long as the largest one, and an arbitrary
    /// number must not make it long.
    pub(crate) fn insert(&self, fd: RawFd, kind: Kind<C>) -> io::Result<Token> {
        let mut entries = self.entries.borrow_mut();
        let index = fd as usize;
        if index >= entries.len() {
            // SAFETY: asks for a flag, with any number.
            if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                return Err(io::Error::last_os_error());
            }
            entries.resize_with(index + 1, || Entry { generation: 0, kind: Kind::Free });
        }
        let entry = &mut entries[index];
        entry.next_generation();
        let (old, token) = (entry.replace(kind), pack(fd, entry.generation));
        drop(entries);
        self.forget(&old);
        Ok(token)
    }

    /// Puts something else behind a descriptor whose registration goes on: its token stays alive.
    pub(crate) fn replace(&self, fd: RawFd, kind: Kind<C>) -> Option<Token> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(fd as usize)?;
        let (old, token) = (entry.replace(kind), pack(fd, entry.generation));
        drop(entries);
        self.forget(&old);
        Some(token)
    }

    /// Takes away what is behind a descriptor; its token is dead from now on.
    pub(crate) fn remove(&self, fd: RawFd) -> Kind<C> {
        let old = match self.entries.borrow_mut().get_mut(fd as usize) {
            Some(entry) => {
                entry.next_generation();
                entry.replace(Kind::Free)
            }
            None => Kind::Free,
        };
        self.forget(&old);
        old
    }

    /// How many callbacks of the program wait for watched descriptors.
    #[inline(always)]
    pub(crate) fn callbacks(&self) -> usize {
        self.callbacks.get()
    }

    /// Makes `waiter` the one that waits in this direction; gives the one before.
    pub(crate) fn set_waiter(
        &self,
        watched: &WatchedFd,
        direction: Direction,
        waiter: Option<Ref>,
    ) -> Option<Ref> {
        let (before, side) = (watched.callbacks(), watched.side(direction));
        let old = side.take();
        side.set(waiter);
        self.callbacks.set(self.callbacks.get() - before + watched.callbacks());
        old
    }

    /// The loop itself watches this descriptor: its callbacks do not count as the program's.
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
    pub(crate) fn watched(&self, fd: RawFd) -> Option<Rc<WatchedFd>> {
        match self.entries.borrow().get(fd as usize) {
            Some(Entry { kind: Kind::Watched(watched), .. }) => Some(Rc::clone(watched)),
            _ => None,
        }
    }

    /// The descriptor that is watched for this file object.
    pub(crate) fn watched_as(&self, file: *mut ffi::PyObject) -> Option<RawFd> {
        let of_file = |entry: &Entry<C>| matches!(&entry.kind, Kind::Watched(watched) if watched.is_of(file));
        self.entries.borrow().iter().position(of_file).map(|fd| fd as RawFd)
    }

    /// The native object behind a descriptor, if that is what is there.
    pub(crate) fn source(&self, fd: RawFd) -> Option<Ref> {
        let (object, has_descriptor) = match self.entries.borrow().get(fd as usize) {
            Some(Entry { kind: Kind::Source(source), .. }) => (source.get(), source.has_descriptor),
            _ => return None,
        };
        has_descriptor(&object).then_some(object)
    }

    /// All native objects.
    pub(crate) fn sources(&self) -> Vec<Ref> {
        let entries = self.entries.borrow();
        entries
            .iter()
            .filter_map(
                |entry| if let Kind::Source(source) = &entry.kind { Some(source.get()) } else { None },
            )
            .collect()
    }

    /// The table no longer keeps the source behind a token alive, or does so again. For an object that waits for
    /// nothing at the moment: without another reference, it may die.
    ///
    /// # Safety
    /// `object` is that source. It takes itself out of the table before it dies.
    pub(crate) unsafe fn keep(&self, token: Token, object: &Ref, keep: bool) {
        let (fd, generation) = unpack(token);
        let mut entries = self.entries.borrow_mut();
        let Some(Entry { generation: current, kind: Kind::Source(source) }) = entries.get_mut(fd as usize)
        else {
            return;
        };
        if *current != generation || matches!(source.holder, Holder::Owned(_)) == keep {
            return;
        }
        let holder = if keep { Holder::Owned(object.clone_ref()) } else { Holder::Borrowed(object.as_ptr()) };
        // The caller has the object: nothing dies here.
        drop(std::mem::replace(&mut source.holder, holder));
    }

    /// Is a listener behind the descriptor?
    pub(crate) fn is_listener(&self, fd: RawFd) -> bool {
        let entries = self.entries.borrow();
        matches!(entries.get(fd as usize), Some(Entry { kind: Kind::Source(source), .. }) if source.listener)
    }

    /// What an event with this token leads to: nothing, if the token is of an earlier generation. The target is owned,
    /// because it may be taken out of the table while it is called.
    #[inline(always)]
    pub(crate) fn target(&self, token: Token) -> Option<Target<C>> {
        let (fd, generation) = unpack(token);
        let entries = self.entries.borrow();
        let entry = entries.get(fd as usize).filter(|entry| entry.generation == generation)?;
        match &entry.kind {
            Kind::Source(source) => Some(Target::Source(source.get(), source.on_ready)),
            Kind::Watched(watched) => Some(Target::Watched(fd, Rc::clone(watched))),
            Kind::Free => None,
        }
    }

    /// Every descriptor that has something behind it.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let entries = self.entries.borrow();
        let used = entries.iter().enumerate().filter(|(_, entry)| !matches!(entry.kind, Kind::Free));
        used.map(|(fd, _)| fd as RawFd).collect()
    }

    /// For the collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        for entry in self.entries.borrow().iter() {
            match &entry.kind {
                Kind::Source(SourceEntry { holder: Holder::Owned(object), .. }) => visit(object),
                Kind::Source(_) | Kind::Free => {}
                Kind::Watched(watched) => watched.traverse(visit),
            }
        }
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
    fn a_token_dies_with_what_it_leads_to() {
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
    fn a_number_that_is_no_descriptor_is_refused() {
        let table: FdTable<()> = FdTable::new();
        assert!(table.insert(RawFd::MAX, Kind::Free).is_err());
    }
}
