//! What every transport is: the fields that all kinds have, and the trait that names what differs.
//!
//! A transport is an instance of a class of its own ([`super::class`]), derived from asyncio's, with the fields of one
//! [`TransportKind`] behind those of the base class. The fields of a kind include one [`TransportBase`].
//!
//! **Order of calls.** The poller calls a transport, a transport calls its protocol, and a protocol writes. What reading
//! and writing return says what happened; the transport acts on it.
//!
//! **Life.** A transport is made around a descriptor ([`super::opening`]). A queued step calls `connection_made` and
//! begins to watch. Closing sends what is pending and queues a step that calls `connection_lost`, closes the descriptor
//! and drops everything ([`super::closing`]). [`super::phase`] has the table.
//!
//! **Contexts.** Every callback of the protocol runs in one context, which is copied when the transport is made.
//!
//! **Threads.** The thread of the loop, with the interpreter attached. Nothing is borrowed across a call into Python.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::phase::Life;
use super::water_marks::WaterMarks;
use crate::capi::call::in_kept_context;
use crate::capi::class::Field;
use crate::capi::collector::Traverse;
use crate::capi::methods::Attribute;
use crate::capi::native::{Dealloc, WeakList};
use crate::capi::{Borrowed, Fatal, Raised, Ref, Slot, This};
use crate::event_loop::core::Core;
use crate::event_loop::core::loop_ref::LoopRef;
use crate::event_loop::source::Source;
use crate::reactor::{Interest, Readiness, Token};

/// After so many writes to a lost connection asyncio begins to warn.
const WARN_AFTER: u32 = 5;

/// The fields that transports of every kind have.
#[derive(Debug)]
pub(crate) struct TransportBase {
    pub(super) event_loop: LoopRef,
    pub(crate) context: Slot,
    /// The Python object that owns the descriptor: a socket or a file.
    pub(crate) owner: Slot,
    /// The dict behind `get_extra_info`.
    pub(crate) extra: Slot,
    /// The protocol's bound `connection_made`, until it is called.
    pub(super) made: Slot,
    /// The future that waits for the transport, until it is done.
    pub(super) waiter: Slot,
    /// The argument of `connection_lost`, once that is queued.
    pub(super) lost_with: Slot,
    pub(crate) weaklist: WeakList,
    pub(crate) dict: Slot,
    pub(crate) marks: WaterMarks,
    pub(crate) token: Cell<Token>,
    /// The turn in which reading was resumed last.
    pub(super) resumed_in: Cell<u64>,
    /// -1 before the transport owns the descriptor, and once it is closed.
    pub(crate) fd: Cell<RawFd>,
    /// How many writes were dropped because the connection was lost.
    lost_writes: Cell<u32>,
    pub(crate) life: Life,
    /// What the poller reports about the descriptor.
    pub(super) watched: Cell<Option<Interest>>,
    /// Readiness that came while the transport could not act on it.
    pub(crate) kept: Cell<Readiness>,
    /// The transport acts on readiness, perhaps by a call of the protocol in which another loop runs.
    pub(crate) acting: Cell<bool>,
    /// `pause_reading()` was called.
    pub(crate) paused: Cell<bool>,
    /// `pause_writing()` of the protocol was called.
    pub(crate) protocol_paused: Cell<bool>,
}

/// The fields that [`TransportKind`] asks for. `native_transport!` implements it.
pub(crate) trait TransportFields: Dealloc {
    const WEAKLIST: Field<Self, WeakList>;
    const DICT: Field<Self, Slot>;

    fn base(&self) -> &TransportBase;

    /// The protocol, or nothing once the connection is lost.
    fn protocol(&self) -> &Slot;
}

/// A kind of transport: the struct behind the fields of asyncio's base class. What differs from asyncio's other
/// transports in a way that programs can see has a name here.
pub(crate) trait TransportKind: TransportFields + Traverse + Source {
    /// The name of the class in Python, with its module.
    const NAME: &'static CStr;
    /// The names of its base classes in `asyncio.transports`.
    const BASES: &'static [&'static str];
    /// The attribute that holds the descriptor.
    const DESCRIPTOR: &'static CStr;
    /// The attribute that holds the owner of the descriptor.
    const OWNER: &'static CStr;
    /// Registered once, for both directions, and for edges. The others are registered for what they want at the time.
    const EDGE_TRIGGERED: bool = false;
    /// The function of `wakeloop._support` that reports an error which ends the transport.
    const REPORT_FATAL: &'static str = "fatal_error";
    /// Does the end count as the first write that was lost?
    const END_COUNTS: bool = true;
    /// The descriptor is the transport's own: a Python socket for it is made when somebody asks, and kept when it is
    /// closed. The others close the Python object that owns the descriptor.
    const OWNS_DESCRIPTOR: bool = false;
    /// Does a method that ends or resumes the transport fail if the loop is closed?
    const NEEDS_OPEN_LOOP: bool = false;

    /// Takes another protocol.
    fn set_protocol(&self, protocol: Ref) -> Result<(), Raised> {
        self.protocol().set(Some(protocol));
        Ok(())
    }

    /// Drops the protocol, when the connection is lost.
    fn forget_protocol(&self) {
        self.protocol().clear();
    }

    /// The descriptor for system calls: -1 if the program has closed the owner, because the number may be another's.
    fn descriptor(&self) -> RawFd;

    // -- what happens in its life --------------------------------------------------------------------------------

    /// It is about to enter the loop's table.
    fn enter(_this: This<'_, Self>) -> Result<(), Raised> {
        Ok(())
    }

    /// It has left the loop's table, or could not enter.
    fn leave(_this: This<'_, Self>) -> Result<(), Raised> {
        Ok(())
    }

    /// `connection_made` was called. `held`: the descriptor was registered before that, and a task waits for the
    /// transport, which is to act before it does.
    fn started(_this: This<'_, Self>, _core: &Core, _held: bool) {}

    /// `connection_lost(exception)` was called and the descriptor is closed.
    fn lost(_this: This<'_, Self>, _core: &Core, _exception: &Ref) -> Result<(), Fatal> {
        Ok(())
    }

    /// The descriptor is about to be closed, and still open.
    fn remember(_this: This<'_, Self>) {}

    // -- reading -------------------------------------------------------------------------------------------------

    /// What the poller should report as things stand. Asked while the transport is not closed and has started.
    fn interest(&self) -> Option<Interest> {
        None
    }

    /// `pause_reading()` was called.
    fn reading_paused(_this: This<'_, Self>) {}

    /// `resume_reading()` was called: what was held back is due in the next turn.
    fn reading_resumed(_this: This<'_, Self>, _core: &Core) {}

    // -- writing -------------------------------------------------------------------------------------------------

    /// Sends what was written in this turn, for a caller in Python: asyncio would have sent it at once.
    fn send_gathered(_this: This<'_, Self>) -> Result<(), Raised> {
        Ok(())
    }

    /// The same when the connection is lost: nothing is reported.
    fn send_last(_this: This<'_, Self>) {}

    /// What is written by way of a layer above, before a method ends the transport.
    fn send_from_above(&self) {}

    /// How many bytes wait for the descriptor to take them.
    fn unsent(&self) -> usize {
        0
    }

    /// Is nothing left to send?
    fn is_drained(&self) -> bool {
        self.unsent() == 0
    }

    /// Drops what is not sent.
    fn drop_unsent(&self) {}

    // -- what Python sees ----------------------------------------------------------------------------------------

    /// The attribute [`OWNER`](TransportKind::OWNER). Setting it to `None` takes the owner away: the program closes it
    /// then, and there is no ResourceWarning.
    fn owner_attribute() -> Attribute<Self> {
        Attribute::new(
            Self::OWNER,
            |this: This<'_, Self>| this.base().owner.get(),
            |this: This<'_, Self>, value: Option<Borrowed<'_>>| {
                this.base().owner.set(value.filter(|it| !it.is_none()).map(Borrowed::to_owned));
            },
        )
    }

    /// Was the owner taken away from the transport, or is the descriptor closed? Then there is nothing to close.
    fn is_released(&self) -> bool {
        self.base().owner.is_empty()
    }

    /// `get_extra_info(name)`.
    fn extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.base().extra.get() {
            Some(extra) => extra.bind(py).cast::<PyDict>()?.get_item(name),
            None => Ok(None),
        }
    }

    /// The `_extra` attribute.
    fn all_extra(&self, py: Python<'_>) -> PyResult<Option<Ref>> {
        let _ = py;
        Ok(self.base().extra.get())
    }

    /// What `repr` says behind the descriptor.
    fn describe(&self, text: &mut String);
}

/// Where the fields begin in every transport: behind the largest of asyncio's base classes. Stored at import.
pub(super) static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// [`Native::offset`](crate::capi::Native::offset) of every kind.
#[inline(always)]
pub(crate) fn offset() -> usize {
    // Ordering: Relaxed. It is stored at import, before a transport is made.
    OFFSET.load(Ordering::Relaxed)
}

impl TransportBase {
    #[inline(always)]
    pub(super) fn new(core: &Core, context: Ref, made: Ref, waiter: Option<Ref>, extra: Option<Ref>) -> Self {
        TransportBase {
            event_loop: core.loop_ref(),
            context: Slot::new(Some(context)),
            owner: Slot::empty(),
            extra: Slot::new(extra),
            made: Slot::new(Some(made)),
            waiter: Slot::new(waiter),
            lost_with: Slot::empty(),
            weaklist: WeakList::new(),
            dict: Slot::empty(),
            marks: WaterMarks::new(),
            token: Cell::new(Token(0)),
            resumed_in: Cell::new(0),
            fd: Cell::new(-1),
            lost_writes: Cell::new(0),
            life: Life::new(),
            watched: Cell::new(None),
            kept: Cell::new(Readiness::EMPTY),
            acting: Cell::new(false),
            paused: Cell::new(false),
            protocol_paused: Cell::new(false),
        }
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Core {
        self.event_loop.core()
    }

    /// The loop, as an object.
    pub(crate) fn event_loop(&self) -> &Ref {
        self.event_loop.object()
    }

    /// What `is_reading()` returns.
    #[inline(always)]
    pub(crate) fn is_reading(&self) -> bool {
        !self.life.is_closing() && !self.paused.get()
    }

    /// Is anything to be read sooner or later?
    #[inline(always)]
    pub(crate) fn awaits_data(&self) -> bool {
        self.life.expects_data() && !self.paused.get()
    }

    /// Was reading resumed in this very turn? What the turn's poll reported is then not acted on: asyncio's pause has
    /// taken it back.
    #[inline(always)]
    pub(crate) fn has_just_resumed(&self, core: &Core) -> bool {
        self.resumed_in.get() == core.counters.turns.get()
    }

    /// Reading begins anew in the next turn.
    pub(crate) fn resume_next_turn(&self, core: &Core) {
        self.resumed_in.set(core.counters.turns.get());
    }

    /// Is the descriptor registered with the poller?
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.get().is_some()
    }

    /// Runs `body` in the transport's context.
    #[inline(always)]
    pub(crate) fn in_context<T>(&self, body: impl FnOnce() -> Result<T, Raised>) -> Result<T, Raised> {
        match self.context.get() {
            Some(context) => in_kept_context(&context, body),
            None => body(),
        }
    }

    /// Has no attribute of the instance taken the place of one of the class?
    #[inline(always)]
    pub(crate) fn has_no_own_attributes(&self) -> bool {
        // SAFETY: the slot holds a dict, or nothing.
        self.dict.is_empty() || unsafe { ffi::PyDict_Size(self.dict.as_ptr()) } == 0
    }

    // -- writes that went nowhere --------------------------------------------------------------------------------

    pub(crate) fn lost_writes(&self) -> u32 {
        self.lost_writes.get()
    }

    /// A write that was dropped.
    pub(crate) fn count_lost_write(&self) {
        self.lost_writes.set(self.lost_writes.get().saturating_add(1));
    }
}

impl<T: TransportKind> This<'_, T> {
    /// asyncio's counter behind `_conn_lost`.
    pub(crate) fn conn_lost(self) -> u32 {
        let base = self.fields().base();
        base.lost_writes() + u32::from(T::END_COUNTS && base.life.is_lost())
    }

    /// Drops a write to a connection that is lost: silently at first, then with asyncio's warning.
    #[cold]
    pub(crate) fn write_to_lost(self, warning: &str) -> Result<(), Raised> {
        let base = self.fields().base();
        if self.conn_lost() >= WARN_AFTER {
            base.core().support(warning, &[]).map_err(|Fatal| Raised)?;
        }
        base.count_lost_write();
        Ok(())
    }
}
