//! The native half of a StreamReader: the received data, the waiting read, and asyncio's attributes.

use std::cell::{Cell, UnsafeCell};

use super::store::{Room, Store};
use super::waiter::wake;
use crate::capi::class::{ClassSpec, field};
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::imports::imports;
use crate::capi::inspect::clear_error;
use crate::capi::methods::TypeSlot;
use crate::capi::native::{Dealloc, WeakList, native_class};
use crate::capi::recycle::bytes_cache::BytesCache;
use crate::capi::{Exception, Raised, Ref, Slot};

/// The most room that is reserved for a waiting read. A peer may announce more data than it ever sends.
const AHEAD: usize = 1024 * 1024;
/// If a waiting read needs at least this many more bytes, they are received directly into the store.
const DIRECT: usize = 32 * 1024;
/// The additional room for such a receive. If room is left after a receive, the socket is drained.
const SLACK: usize = 4096;

/// The fields. If all bytes are zero, `__init__` was not called yet.
#[derive(Debug)]
pub(crate) struct Reader {
    store: UnsafeCell<Store>,
    /// The value that Python code has assigned to `_buffer`, if it is not exactly a bytearray.
    pub(super) custom_buffer: Slot,
    pub(super) event_loop: Slot,
    pub(super) transport: Slot,
    pub(super) exception: Slot,
    /// The future of the waiting read.
    pub(super) waiter: Slot,
    /// The limit as the object that was passed, and as a number of bytes.
    pub(super) limit: Slot,
    pub(super) bytes: Cell<usize>,
    /// The limit is not exactly an int.
    pub(super) custom_limit: Cell<bool>,
    /// How many bytes the waiting read needs; 0 if any number is enough.
    pub(super) wanted: Cell<usize>,
    /// The waiting read stays asleep until the store has this many bytes; see [`super::long_read`].
    pub(super) least: Cell<usize>,
    pub(super) eof: Cell<bool>,
    pub(super) paused: Cell<bool>,
    pub(super) source_traceback: Slot,
    weaklist: WeakList,
    pub(super) dict: Slot,
}

// `class` builds the class. Zeroed memory is a valid reader: empty slots, an empty store, no weak references.
native_class!(unsafe Reader);

/// Begins the class. [`super::reader_python`] adds its methods and attributes.
pub(super) fn class<'py>() -> ClassSpec<'py, Reader> {
    // SAFETY: zeroed memory is a valid reader.
    unsafe { ClassSpec::new(c"wakeloop._core.StreamReader").base_class() }
        .doc(c"StreamReader(limit=65536, loop=None)\n--\n\nThe native half of wakeloop.StreamReader.")
        .weaklist(field!(Reader, weaklist))
        .dict(field!(Reader, dict))
        .slots(&[TypeSlot::dealloc()])
        .slots(&TypeSlot::collected())
}

impl Reader {
    /// Has the instance no attributes in its dict, a usual buffer and a usual limit? `object` is the reader.
    #[inline(always)]
    pub(super) fn is_plain(&self, object: &Ref) -> bool {
        self.custom_buffer.is_empty() && !self.custom_limit.get() && object.has_no_items(&self.dict)
    }

    #[allow(clippy::mut_from_ref, reason = "a guarded cell; no borrow is held while Python code can run")]
    #[inline(always)]
    pub(super) fn store(&self) -> &mut Store {
        // SAFETY: this thread is in the reader's section, and every caller ends the borrow before Python code runs.
        unsafe { &mut *self.store.get() }
    }

    fn slots(&self) -> [&Slot; 8] {
        [
            &self.custom_buffer,
            &self.event_loop,
            &self.transport,
            &self.exception,
            &self.waiter,
            &self.limit,
            &self.source_traceback,
            &self.dict,
        ]
    }

    /// May data be added? A plain reader accepts any amount until `feed_eof`.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !self.eof.get()
    }

    /// `feed_data(data)` of a plain, open reader. `cache` is that of the calling loop, if it is one of ours.
    #[inline(always)]
    pub(crate) fn push(&self, data: &[u8], cache: Option<&BytesCache>) -> Result<(), Raised> {
        match self.store().shared() {
            Some(shared) => shared.extend(data)?,
            None => self.store().append(data, cache)?,
        }
        self.arrived()
    }

    /// Removes the first `count` bytes from the store, and returns them. The store has at least that many.
    #[inline(always)]
    pub(super) fn take(&self, count: usize) -> Result<Ref, Raised> {
        match self.store().shared() {
            Some(shared) => shared.take_front(count),
            None => self.store().take(count),
        }
    }

    /// Drops the first `count` bytes of the store, which has at least that many.
    pub(super) fn discard(&self, count: usize) -> Result<(), Raised> {
        match self.store().shared() {
            Some(shared) => shared.delete_front(count),
            None => {
                self.store().discard(count);
                Ok(())
            }
        }
    }

    /// Room for a receive, if the waiting read needs so much that saving a copy is worth it. The caller calls
    /// [`Reader::filled`] before any other code runs.
    #[inline(always)]
    pub(crate) fn room(&self) -> Option<Result<Room, Raised>> {
        let wanted = self.wanted.get();
        let missing = wanted.saturating_sub(self.store().len());
        (missing >= DIRECT && !self.store().is_shared())
            .then(|| self.store().reserve(missing.min(AHEAD) + SLACK, wanted.saturating_add(SLACK)))
    }

    /// `count` bytes were received into the room.
    pub(crate) fn filled(&self, count: usize) -> Result<(), Raised> {
        self.store().commit(count);
        self.arrived()
    }

    /// Called after data was added. Wakes the waiting read, and pauses the transport if the store has more than twice
    /// the limit.
    #[inline(always)]
    fn arrived(&self) -> Result<(), Raised> {
        let length = self.store().len();
        if length < self.least.get() {
            return Ok(());
        }
        if let Some(waiter) = self.waiter.take() {
            wake(&waiter)?;
        }
        if length > self.bytes.get().saturating_mul(2) && !self.paused.get() {
            return self.pause();
        }
        Ok(())
    }

    #[cold]
    fn pause(&self) -> Result<(), Raised> {
        let Some(transport) = self.transport.get() else { return Ok(()) };
        if let Err(Raised) = transport.call_method(&imports().pause_reading, &[]) {
            if !Exception::NotImplementedError.is_set() {
                return Err(Raised);
            }
            clear_error();
            // As in asyncio, a transport that cannot be paused is not asked again.
            self.transport.clear();
            return Ok(());
        }
        self.paused.set(true);
        Ok(())
    }

    /// How many bytes have to arrive before the waiting read does anything; 0 if any number is enough.
    pub(crate) fn missing(&self) -> usize {
        self.least.get().saturating_sub(self.store().len())
    }

    /// `_maybe_resume_transport()`.
    #[inline(always)]
    pub(super) fn maybe_resume(&self) -> Result<(), Raised> {
        if self.paused.get() && self.store().len() <= self.bytes.get() { self.resume() } else { Ok(()) }
    }

    #[cold]
    pub(super) fn resume(&self) -> Result<(), Raised> {
        self.paused.set(false);
        let transport = self.transport.get().unwrap_or_else(Ref::none);
        transport.call_method(&imports().resume_reading, &[]).map(drop)
    }
}

impl Traverse for Reader {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slots(self.slots());
    }

    fn clear(&self) {
        self.slots().into_iter().for_each(Slot::clear);
    }
}

impl Dealloc for Reader {
    fn weaklist(&self) -> Option<&WeakList> {
        Some(&self.weaklist)
    }
}
