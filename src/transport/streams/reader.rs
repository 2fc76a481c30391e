//! The native half of a StreamReader: what it has received, the read that waits for it, and asyncio's attributes.

use std::cell::{Cell, UnsafeCell};

use pyo3::ffi;

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

/// Beyond this size nothing is received ahead into the object that a read waits for: a peer may promise more
/// than it ever sends.
const AHEAD: usize = 1024 * 1024;
/// A read that still wants so much is received straight into the store.
const DIRECT: usize = 32 * 1024;
/// How much more room than is wanted: a receive that leaves room has emptied the socket.
const SLACK: usize = 4096;

/// The fields. All zero is a reader that was never initialised.
#[derive(Debug)]
pub(crate) struct Reader {
    store: UnsafeCell<Store>,
    /// The value that Python code has assigned to `_buffer`, if it is not exactly a bytearray.
    pub(super) odd_buffer: Slot,
    pub(super) event_loop: Slot,
    pub(super) transport: Slot,
    pub(super) exception: Slot,
    /// The future of the read that waits.
    pub(super) waiter: Slot,
    /// The limit as it was given, and as a number.
    pub(super) limit: Slot,
    pub(super) bytes: Cell<usize>,
    pub(super) odd_limit: Cell<bool>,
    /// How much data the read that waits needs; 0 if any will do.
    pub(super) wanted: Cell<usize>,
    pub(super) eof: Cell<bool>,
    pub(super) paused: Cell<bool>,
    pub(super) source_traceback: Slot,
    weaklist: WeakList,
    pub(super) dict: Slot,
}

// `class` builds the class. All zero is a valid reader: empty slots, an empty store, no weak references.
native_class!(unsafe Reader);

/// Begins the class; [`super::reader_python`] adds what Python sees.
pub(super) fn class<'py>() -> ClassSpec<'py, Reader> {
    // SAFETY: all zero is a valid reader.
    unsafe { ClassSpec::new(c"wakeloop._core.StreamReader").base_class() }
        .doc(c"StreamReader(limit=65536, loop=None)\n--\n\nThe native half of wakeloop.StreamReader.")
        .weaklist(field!(Reader, weaklist))
        .dict(field!(Reader, dict))
        .slots(&[TypeSlot::dealloc()])
        .slots(&TypeSlot::collected())
}

impl Reader {
    /// Is it as its class has made it, without attributes of its own, or a buffer or limit of another kind?
    #[inline(always)]
    pub(super) fn is_untouched(&self) -> bool {
        self.odd_buffer.is_empty() && !self.odd_limit.get() && has_no_items(&self.dict)
    }

    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; no borrow is held while Python code can run")]
    #[inline(always)]
    pub(super) fn store(&self) -> &mut Store {
        // SAFETY: see the reason above.
        unsafe { &mut *self.store.get() }
    }

    fn slots(&self) -> [&Slot; 8] {
        [
            &self.odd_buffer,
            &self.event_loop,
            &self.transport,
            &self.exception,
            &self.waiter,
            &self.limit,
            &self.source_traceback,
            &self.dict,
        ]
    }

    /// A plain reader takes data in any amount, unless it has ended.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !self.eof.get()
    }

    /// `feed_data(data)` of a plain, open reader. The cache is that of the loop that calls, if it is one of ours.
    #[inline(always)]
    pub(crate) fn push(&self, data: &[u8], cache: Option<&BytesCache>) -> Result<(), Raised> {
        match self.store().shared() {
            Some(shared) => shared.extend(data)?,
            None => self.store().append(data, cache)?,
        }
        self.arrived()
    }

    /// Takes the first `count` bytes out of the store, of which there are that many.
    #[inline(always)]
    pub(super) fn take(&self, count: usize) -> Result<Ref, Raised> {
        let Some(shared) = self.store().shared() else { return self.store().take(count) };
        let taken = shared.front(count)?;
        shared.delete_front(count)?;
        Ok(taken)
    }

    /// Forgets the first `count` bytes in the store, of which there are that many.
    pub(super) fn discard(&self, count: usize) -> Result<(), Raised> {
        match self.store().shared() {
            Some(shared) => shared.delete_front(count),
            None => {
                self.store().discard(count);
                Ok(())
            }
        }
    }

    /// Room in which to receive, if the read that waits wants so much that a copy is worth saving. What was
    /// received is announced by [`Reader::filled`] before anything else happens.
    #[inline(always)]
    pub(crate) fn room(&self) -> Option<Result<Room, Raised>> {
        let missing = self.wanted.get().saturating_sub(self.store().len());
        (missing >= DIRECT && !self.store().is_shared())
            .then(|| self.store().reserve(missing.min(AHEAD) + SLACK))
    }

    /// `count` bytes are in the room.
    pub(crate) fn filled(&self, count: usize) -> Result<(), Raised> {
        self.store().commit(count);
        self.arrived()
    }

    /// New data is in the store: wakes the read that waits, and pauses the transport beyond twice the limit.
    #[inline(always)]
    fn arrived(&self) -> Result<(), Raised> {
        if let Some(waiter) = self.waiter.take() {
            wake(&waiter)?;
        }
        if self.store().len() > self.bytes.get().saturating_mul(2) && !self.paused.get() {
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
            // It cannot be paused: all of it will have to be kept.
            self.transport.clear();
            return Ok(());
        }
        self.paused.set(true);
        Ok(())
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

/// A dict of instance attributes that does not exist or is empty.
#[inline(always)]
pub(super) fn has_no_items(dict: &Slot) -> bool {
    // SAFETY: null or a dict.
    dict.is_empty() || unsafe { ffi::PyDict_Size(dict.as_ptr()) } == 0
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
