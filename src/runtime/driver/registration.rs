//! A registered socket: its known readiness, and the tasks that wait for it.
//!
//! A socket is registered once, edge-triggered, for both directions. After that, only events and system calls
//! show what it is ready for. The readiness word:
//!
//! ```text
//!   63 ....... 9   8          7 ....... 0
//!   tick           SHUTDOWN   ready bits (`Readiness`)
//! ```
//!
//! The tick counts events. An operation that found the socket exhausted clears its direction only if the tick
//! is the one it saw before its system call: an edge in between must not be cleared, because it will not come
//! again. A short read also means that the socket is exhausted, except while the urgent bit is set, when the
//! read may have ended at the mark of urgent data. An operation that would block also clears the error bit: it
//! would have returned the error. The closed bits and SHUTDOWN are never cleared.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::{Context, Poll, Waker};

use slab::Slab;
use smallvec::SmallVec;

use crate::poison::unpoisoned;
use crate::reactor::{Event, Readiness, Token};
use crate::runtime::lock::ShortLock;
use crate::runtime::prefetch::prefetch;
use crate::runtime::shim::{AtomicUsize, Mutex};
use crate::runtime::wakers;

const READY: usize = 0xFF;
const URGENT: usize = Readiness::PRIORITY.bits() as usize;
pub(super) const SHUTDOWN: usize = 1 << 8;
const TICK: usize = 1 << 9;

/// How many bytes of a waiting task to prefetch: its header, and the beginning of its future.
const TASK: usize = 192;

/// The direction of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Direction {
    Read,
    Write,
}

impl Direction {
    /// The bits that make an operation worth trying.
    pub(super) const fn wanted(self) -> usize {
        let set = match self {
            Direction::Read => [Readiness::READABLE, Readiness::READ_CLOSED, Readiness::ERROR],
            Direction::Write => [Readiness::WRITABLE, Readiness::WRITE_CLOSED, Readiness::ERROR],
        };
        (set[0].bits() | set[1].bits() | set[2].bits()) as usize
    }

    /// The bits to clear when the socket is exhausted.
    const fn cleared(self) -> usize {
        match self {
            Direction::Read => Readiness::READABLE.bits() as usize | URGENT,
            Direction::Write => Readiness::WRITABLE.bits() as usize,
        }
    }

    /// Whether a short read or write means that the socket is exhausted.
    pub(super) const fn may_be_exhausted(self, seen: usize) -> bool {
        matches!(self, Direction::Write) || seen & URGENT == 0
    }
}

/// A token is an index into the table, with the generation of the index's user in the bits above.
const GENERATION_SHIFT: u32 = usize::BITS * 3 / 4;

/// All registrations of a driver, by token.
pub(in super::super) struct Registrations {
    table: Mutex<Table>,
    /// How many registrations there are, readable without the lock.
    count: AtomicUsize,
}

#[derive(Default)]
struct Table {
    places: Slab<SocketEntry>,
    /// The generation of the next registration.
    generation: usize,
}

fn place_of(token: Token) -> usize {
    token.0 & ((1 << GENERATION_SHIFT) - 1)
}

/// An entry of the table. It is reused as soon as it is free.
struct SocketEntry {
    token: Token,
    socket: Arc<Socket>,
}

/// The state that the driver and the owner share.
pub(super) struct Socket {
    readiness: AtomicUsize,
    waiters: ShortLock<Waiters>,
}

/// Nearly always zero or one entry, stored inline beside the readiness. Nothing of a socket that was not used
/// for a while is in the processor's caches, and each line that has to be fetched takes as long as a hundred
/// instructions or more.
type WaitList = SmallVec<[(u64, Waker); 1]>;

/// One list per direction.
#[derive(Default)]
struct Waiters {
    read: WaitList,
    write: WaitList,
    next_key: u64,
}

impl Waiters {
    fn of(&mut self, direction: Direction) -> &mut WaitList {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
        }
    }
}

impl Registrations {
    pub(super) fn new() -> Registrations {
        Registrations { table: Mutex::new(Table::default()), count: AtomicUsize::new(0) }
    }

    /// Adds a socket. Returns `None` if the driver is closed; `is_closed` is reliable under the lock.
    pub(super) fn insert(&self, socket: &Arc<Socket>, is_closed: impl Fn() -> bool) -> Option<Token> {
        let mut table = unpoisoned(self.table.lock());
        if is_closed() {
            return None;
        }
        table.generation = table.generation.wrapping_add(1);
        // The highest bit stays clear. Tokens with a special meaning have it set.
        let generation = (table.generation << GENERATION_SHIFT) & (usize::MAX >> 1);
        let entry = table.places.vacant_entry();
        let token = Token(generation | entry.key());
        entry.insert(SocketEntry { token, socket: socket.clone() });
        self.count.store(table.places.len(), Relaxed);
        Some(token)
    }

    pub(super) fn remove(&self, token: Token) {
        let mut table = unpoisoned(self.table.lock());
        let place = table.places.try_remove(place_of(token));
        self.count.store(table.places.len(), Relaxed);
        drop(table);
        drop(place);
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many sockets are registered.
    pub(in super::super) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Notes the events, and adds the wakers concerned to `ready`. Ignores an event of a socket that was
    /// deregistered after the system reported it: a new socket in the same entry must not see it.
    #[inline(always)]
    pub(super) fn dispatch(&self, events: impl Iterator<Item = Event> + Clone, ready: &mut Vec<Waker>) {
        let table = unpoisoned(self.table.lock());
        for Event { token, .. } in events.clone() {
            if let Some(place) = table.places.get(place_of(token)) {
                prefetch(Arc::as_ptr(&place.socket), size_of::<Socket>());
            }
        }
        for Event { token, readiness } in events {
            if let Some(place) = table.places.get(place_of(token))
                && place.token == token
            {
                place.socket.add(usize::from(readiness.bits()), ready);
            }
        }
    }

    /// Whether a task waits for any of the sockets.
    pub(in super::super) fn any_awaited(&self) -> bool {
        unpoisoned(self.table.lock()).places.iter().any(|(_, place)| place.socket.is_awaited())
    }

    pub(super) fn close(&self, ready: &mut Vec<Waker>) {
        for (_, place) in unpoisoned(self.table.lock()).places.iter() {
            place.socket.add(READY | SHUTDOWN, ready);
        }
    }
}

impl Socket {
    pub(super) fn new(assumed: Readiness) -> Socket {
        Socket {
            readiness: AtomicUsize::new(usize::from(assumed.bits())),
            waiters: ShortLock::new(Waiters::default()),
        }
    }

    pub(super) fn add(&self, bits: usize, ready: &mut Vec<Waker>) {
        // Ordering: Release pairs with `load`, for a waiter that sees the bits and makes its system call. No
        // event is missed: the waiter enters the list and then looks again. Of the two sections under the lock
        // one comes first. Either ours finds the waiter, or the waiter's look comes after this change.
        let update = |word: usize| Some((word | bits).wrapping_add(TICK));
        let before = self.readiness.fetch_update(Release, Relaxed, update);
        let word = before.unwrap_or_else(|word| word) | bits;
        let mut waiters = self.waiters.lock();
        for direction in [Direction::Read, Direction::Write] {
            if word & (direction.wanted() | SHUTDOWN) != 0 {
                for (_, waker) in waiters.of(direction).drain(..) {
                    prefetch(waker.data(), TASK);
                    ready.push(waker);
                }
            }
        }
    }

    fn is_awaited(&self) -> bool {
        let waiters = self.waiters.lock();
        !waiters.read.is_empty() || !waiters.write.is_empty()
    }

    /// Notes that an operation in this direction would block, as of `seen`.
    pub(super) fn clear(&self, seen: usize, direction: Direction) {
        self.clear_bits(seen, direction.cleared() | Readiness::ERROR.bits() as usize);
    }

    /// As `clear`, after an operation that succeeded and exhausted the socket.
    pub(super) fn clear_exhausted(&self, seen: usize, direction: Direction) {
        self.clear_bits(seen, direction.cleared());
    }

    fn clear_bits(&self, seen: usize, bits: usize) {
        let update = |word: usize| (word / TICK == seen / TICK).then_some(word & !bits);
        // Relaxed: this passes nothing on. If the tick has changed, the new edge stays. If this is reordered
        // before the system call that found nothing, an edge in between sets the bit again.
        let _ = self.readiness.fetch_update(Relaxed, Relaxed, update);
    }

    pub(super) fn load(&self) -> usize {
        // Ordering: pairs with `add`.
        self.readiness.load(Acquire)
    }
}

/// One operation that may have to wait. It leaves the list when dropped.
pub(super) struct SocketWait<'a> {
    socket: &'a Socket,
    direction: Direction,
    key: Cell<Option<u64>>,
}

impl<'a> SocketWait<'a> {
    pub(super) fn new(socket: &'a Socket, direction: Direction) -> SocketWait<'a> {
        SocketWait { socket, direction, key: Cell::new(None) }
    }

    /// Returns the readiness word once it has a bit of interest.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<usize> {
        let wanted = self.direction.wanted() | SHUTDOWN;
        let word = self.socket.load();
        if word & wanted != 0 {
            return Poll::Ready(word);
        }
        self.enter(cx);
        // Look once more: an event that came before we were in the list woke nobody.
        let word = self.socket.load();
        if word & wanted != 0 { Poll::Ready(word) } else { Poll::Pending }
    }

    /// After an operation that would block although a permanent bit is set: waits for the next tick.
    pub(super) fn is_stuck(&self, seen: usize, cx: &mut Context<'_>) -> bool {
        if seen & (self.direction.wanted() & !self.direction.cleared()) == 0 {
            return false;
        }
        self.enter(cx);
        self.socket.load() / TICK == seen / TICK
    }

    fn enter(&self, cx: &Context<'_>) {
        let mut waiters = self.socket.waiters.lock();
        if let Some(key) = self.key.get()
            && let Some((_, waker)) = waiters.of(self.direction).iter_mut().find(|(other, _)| *other == key)
        {
            let replaced = wakers::renew(waker, cx.waker());
            drop(waiters);
            drop(replaced);
            return;
        }
        let key = waiters.next_key;
        waiters.next_key += 1;
        waiters.of(self.direction).push((key, cx.waker().clone()));
        self.key.set(Some(key));
    }
}

impl Drop for SocketWait<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.get() {
            let mut waiters = self.socket.waiters.lock();
            let list = waiters.of(self.direction);
            let place = list.iter().position(|(other, _)| *other == key);
            let left = place.map(|place| list.remove(place));
            drop(waiters);
            // Not under the lock: dropping a waker may run foreign code.
            drop(left);
        }
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_removed_socket_does_not_reach_its_successor_in_the_table() {
        let registrations = Registrations::new();
        let add = || {
            let socket = Arc::new(Socket::new(Readiness::EMPTY));
            let token = registrations.insert(&socket, || false).unwrap();
            (socket, token)
        };
        let (_, gone) = add();
        registrations.remove(gone);
        let (socket, token) = add();
        assert_eq!(place_of(gone), place_of(token));
        let mut ready = Vec::new();
        let hung_up = |token| [Event { token, readiness: Readiness::READ_CLOSED }].into_iter();
        registrations.dispatch(hung_up(gone), &mut ready);
        assert_eq!(socket.load(), 0);
        registrations.dispatch(hung_up(token), &mut ready);
        assert_ne!(socket.load(), 0);
    }
}
