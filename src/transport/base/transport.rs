//! The fields of all transports, and the trait [`TransportKind`] for the differences between the kinds.
//!
//! Each kind has a Python class ([`super::class`]) that inherits from asyncio's classes. In memory, the fields of the
//! [`TransportKind`] follow those of the base class. They include a [`TransportBase`].
//!
//! **Order of calls.** The poller calls a transport, the transport calls its protocol, and the protocol writes. The
//! functions for reading and writing return what happened, and the transport acts on that.
//!
//! **Phases.** A transport is created for a descriptor ([`super::opening`]). A queued callback calls `connection_made`
//! and begins to watch the descriptor. Closing sends pending data, and queues a callback that calls `connection_lost`,
//! closes the descriptor and drops all references ([`super::closing`]). [`super::phase`] has the table of phases.
//!
//! **Contexts.** All callbacks of the protocol run in one context, which is copied when the transport is created.
//!
//! **Threads.** A transport is used in a section of its loop, most often by the loop's thread. Nothing is borrowed during a
//! call into Python.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::phase::Life;
use super::water_marks::WaterMarks;
use crate::capi::call::in_kept_context;
use crate::capi::class::Field;
use crate::capi::collector::Traverse;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::methods::Attribute;
use crate::capi::native::{Dealloc, WeakList};
use crate::capi::{Borrowed, Exception, Fatal, Raised, Ref, Slot, This};
use crate::compat::MAX_SIZE;
use crate::compat::transports::Replaced;
use crate::kernel::core::Core;
use crate::kernel::core::loop_ref::LoopRef;
use crate::kernel::source::{Source, SourceKind, Status};
use crate::reactor::{Interest, Readiness, Token};

/// The fields of every transport.
#[derive(Debug)]
pub(crate) struct TransportBase {
    pub(super) event_loop: LoopRef,
    pub(crate) context: Slot,
    /// The Python object that owns the descriptor: a socket or a file.
    pub(crate) owner: Slot,
    /// The dict for `get_extra_info`.
    pub(crate) extra: Slot,
    /// The protocol's bound `connection_made`, until it is called.
    pub(super) connection_made: Slot,
    /// The future that is completed when the transport has started.
    pub(super) waiter: Slot,
    /// The argument of `connection_lost`, once that is queued.
    pub(super) lost_exception: Slot,
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
    /// The interest with which the descriptor is registered.
    pub(super) watched: Cell<Option<Interest>>,
    /// Readiness that was reported while the transport could not handle it.
    pub(crate) pending_readiness: Cell<Readiness>,
    /// The transport is handling an event. The protocol may run the loop during that.
    pub(crate) handling: Cell<bool>,
    /// `pause_reading()` was called.
    pub(crate) paused: Cell<bool>,
    /// The protocol's `pause_writing()` was called.
    pub(crate) protocol_paused: Cell<bool>,
}

/// Access to the fields that [`TransportKind`] needs. `native_transport!` implements it.
pub(crate) trait TransportFields: Dealloc {
    const WEAKLIST: Field<Self, WeakList>;
    const DICT: Field<Self, Slot>;

    fn base(&self) -> &TransportBase;

    /// The protocol; empty once the connection is lost.
    fn protocol(&self) -> &Slot;
}

/// A kind of transport. The constants name the differences between asyncio's transports that programs can observe.
pub(crate) trait TransportKind: TransportFields + Traverse + Source {
    /// The name of the class in Python, with its module.
    const NAME: &'static CStr;
    /// The text for `help()`.
    const DOC: &'static CStr;
    /// The end of the repr of a closed transport.
    const CLOSED: &str = "";
    /// The asyncio class whose patches it follows.
    const REPLACES: Replaced;
    /// The names of its base classes in `asyncio.transports`.
    const BASES: &'static [&'static str];
    /// The name of the attribute with the descriptor.
    const DESCRIPTOR: &'static CStr;
    /// The name of the attribute with the owner of the descriptor.
    const OWNER: &'static CStr;
    /// It is registered once, edge-triggered and for both directions. Other kinds are level-triggered, and update their
    /// registration.
    const EDGE_TRIGGERED: bool = false;
    /// The function of `wakeloop._support` that reports an error which ends the transport.
    const REPORT_FATAL: &'static str = "fatal_error";
    /// Is `_conn_lost` increased when the connection is lost?
    const END_COUNTS: bool = true;
    /// The class attribute `max_size`, which asyncio's transports that read have.
    const MAX_SIZE: Option<i64> = Some(MAX_SIZE);
    /// The transport itself owns the descriptor. A Python socket is created for it only if a program asks, and is kept
    /// after it was closed. Other kinds close the Python object that owns the descriptor, and drop it.
    const OWNS_DESCRIPTOR: bool = false;

    /// Replaces the protocol.
    fn set_protocol(&self, protocol: Ref) -> Result<(), Raised> {
        self.protocol().set(Some(protocol));
        Ok(())
    }

    /// Drops the protocol, when the connection is lost.
    fn forget_protocol(&self) {
        self.protocol().clear();
    }

    /// The descriptor for system calls. It is -1 if the program has closed the owner, because another file may have the
    /// number.
    fn descriptor(&self) -> RawFd;

    // -- phases --------------------------------------------------------------------------------------------------

    /// Called before the transport is added to the loop's table.
    fn enter(_this: This<'_, Self>) -> Result<(), Raised> {
        Ok(())
    }

    /// Called after the transport was removed from the loop's table, or could not be added.
    fn leave(_this: This<'_, Self>) -> Result<(), Raised> {
        Ok(())
    }

    /// Called after `connection_made`. With `held` the descriptor was registered before that, and a task waits for the
    /// transport. This task has to run before the transport handles an event.
    fn started(_this: This<'_, Self>, _core: &Core, _held: bool) {}

    /// Called after `connection_lost(exception)`, when the descriptor is closed.
    fn lost(_this: This<'_, Self>, _core: &Core, _exception: &Ref) -> Result<(), Fatal> {
        Ok(())
    }

    /// Called before the descriptor is closed.
    fn remember(_this: This<'_, Self>) {}

    // -- reading -------------------------------------------------------------------------------------------------

    /// The interest for the registration in the poller. Called only after the start and before the end of the
    /// transport.
    fn interest(&self) -> Option<Interest> {
        None
    }

    /// `pause_reading()` was called.
    fn reading_paused(_this: This<'_, Self>) {}

    /// `resume_reading()` was called. Data that was held back is delivered in the next turn.
    fn reading_resumed(_this: This<'_, Self>, _core: &Core) {}

    // -- writing -------------------------------------------------------------------------------------------------

    /// Sends what is held, because asyncio would have sent it already. An error is raised to the caller.
    fn send_gathered(_this: This<'_, Self>) -> Result<(), Raised> {
        Ok(())
    }

    /// Sends what is held if asyncio's streams ask whether the transport is closing, because their `drain()` does.
    fn send_for_drain(_this: This<'_, Self>) -> Result<(), Raised> {
        Ok(())
    }

    /// Sends what is held before the connection is closed by force. Ignores errors.
    fn send_last(_this: This<'_, Self>) {}

    /// Sends the writes of a TLS connection on this transport, before a method closes the transport.
    fn send_tls_writes(&self) {}

    /// The number of bytes that are not sent yet.
    fn unsent(&self) -> usize {
        0
    }

    /// The number of bytes that a TLS connection on this transport has not encrypted yet.
    fn unsent_of_protocol(&self) -> usize {
        0
    }

    /// The kind, as `loop.metrics()` counts it.
    fn source_kind(&self) -> SourceKind;

    /// Is everything sent?
    fn is_drained(&self) -> bool {
        self.unsent() == 0
    }

    /// Drops all data that is not sent yet.
    fn drop_unsent(&self) {}

    // -- the Python class ----------------------------------------------------------------------------------------

    /// The attribute [`OWNER`](TransportKind::OWNER). A program may set it to `None`. It then has to close the owner
    /// itself, and there is no ResourceWarning.
    fn owner_attribute() -> Attribute<Self> {
        Attribute::new(
            Self::OWNER,
            |this: This<'_, Self>| this.base().owner.get(),
            |this: This<'_, Self>, value: Option<Borrowed<'_>>| {
                this.base().owner.set(value.filter(|it| !it.is_none()).map(Borrowed::to_owned));
            },
        )
    }

    /// Is there nothing left to close, because the descriptor is closed or the program has taken the owner?
    fn is_released(&self) -> bool {
        self.base().owner.is_empty()
    }

    /// `get_extra_info(name)`.
    fn extra_info<'py>(
        this: This<'_, Self>,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match this.base().extra.get() {
            Some(extra) => extra.bind(py).cast::<PyDict>()?.get_item(name),
            None => Ok(None),
        }
    }

    /// The `_extra` attribute.
    fn all_extra(this: This<'_, Self>, py: Python<'_>) -> PyResult<Option<Ref>> {
        let _ = py;
        Ok(this.base().extra.get())
    }

    /// Appends the end of the `repr`, after the descriptor.
    fn describe(&self, text: &mut String);
}

/// The offset of the fields in every transport: after the fields of the largest of asyncio's base classes. Stored at
/// import.
pub(super) static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// [`Native::offset`](crate::capi::Native::offset) of every kind.
#[inline(always)]
pub(crate) fn offset() -> usize {
    // Ordering: Relaxed. It is stored at import, before any transport is created.
    OFFSET.load(Ordering::Relaxed)
}

/// [`Source::status`] of every kind.
pub(crate) fn status<T: TransportKind>(this: This<'_, T>) -> Status {
    let base = this.base();
    Status {
        kind: this.source_kind(),
        detached: this.descriptor() != base.fd.get(),
        unsent: this.unsent() + this.unsent_of_protocol(),
        writing_paused: base.protocol_paused.get(),
        reading_paused: base.paused.get(),
        alarm: None,
    }
}

impl TransportBase {
    #[inline(always)]
    pub(super) fn new(core: &Core, context: Ref, made: Ref, waiter: Option<Ref>, extra: Option<Ref>) -> Self {
        TransportBase {
            event_loop: core.loop_ref(),
            context: Slot::new(Some(context)),
            owner: Slot::empty(),
            extra: Slot::new(extra),
            connection_made: Slot::new(Some(made)),
            waiter: Slot::new(waiter),
            lost_exception: Slot::empty(),
            weaklist: WeakList::new(),
            dict: Slot::empty(),
            marks: WaterMarks::new(),
            token: Cell::new(Token(0)),
            resumed_in: Cell::new(0),
            fd: Cell::new(-1),
            lost_writes: Cell::new(0),
            life: Life::default(),
            watched: Cell::new(None),
            pending_readiness: Cell::new(Readiness::EMPTY),
            handling: Cell::new(false),
            paused: Cell::new(false),
            protocol_paused: Cell::new(false),
        }
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Core {
        self.event_loop.core()
    }

    /// The loop as a Python object.
    pub(crate) fn event_loop(&self) -> &Ref {
        self.event_loop.object()
    }

    /// The result of `is_reading()`.
    #[inline(always)]
    pub(crate) fn is_reading(&self) -> bool {
        !self.life.is_closing() && !self.paused.get()
    }

    /// May more data arrive, and is reading not paused?
    #[inline(always)]
    pub(crate) fn awaits_data(&self) -> bool {
        self.life.expects_data() && !self.paused.get()
    }

    /// Was reading resumed in this turn? Then events of this turn's poll are not handled, because in asyncio the pause
    /// has removed them.
    #[inline(always)]
    pub(crate) fn has_just_resumed(&self, core: &Core) -> bool {
        self.resumed_in.get() == core.turn_number()
    }

    /// Resumes reading from the next turn on.
    pub(crate) fn resume_next_turn(&self, core: &Core) {
        self.resumed_in.set(core.turn_number());
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

    // -- writes after the connection was lost --------------------------------------------------------------------

    pub(crate) fn lost_writes(&self) -> u32 {
        self.lost_writes.get()
    }

    /// Counts a write that was dropped.
    pub(crate) fn count_lost_write(&self) {
        self.lost_writes.set(self.lost_writes.get().saturating_add(1));
    }
}

impl<T: TransportKind> This<'_, T> {
    /// Is the instance's dict empty, so that no attribute hides one of the class?
    #[inline(always)]
    pub(crate) fn has_no_own_attributes(self) -> bool {
        self.object().has_no_items(&self.fields().base().dict)
    }

    /// asyncio's counter `_conn_lost`.
    pub(crate) fn conn_lost(self) -> u32 {
        let base = self.fields().base();
        base.lost_writes() + u32::from(T::END_COUNTS && base.life.is_lost())
    }

    /// How much the next read takes: `size`, or less if the program has set `max_size` on the transport.
    #[inline(always)]
    pub(crate) fn receive_size(self, size: usize) -> Result<usize, Raised> {
        if self.has_no_own_attributes() { Ok(size) } else { self.own_receive_size(size) }
    }

    #[cold]
    fn own_receive_size(self, size: usize) -> Result<usize, Raised> {
        let own = self.object().to_owned().getattr(&imports().max_size)?.to_ssize()?;
        match usize::try_from(own) {
            Ok(own) => Ok(own.min(size)),
            Err(_) => Err(Exception::ValueError.raise("negative buffersize in recv")),
        }
    }

    /// Drops a write to a lost connection. The first ones are dropped silently, later ones log asyncio's warning.
    #[cold]
    pub(crate) fn write_to_lost(self, warning: &str) -> Result<(), Raised> {
        let base = self.fields().base();
        let lost = integer(self.conn_lost())?;
        base.core().support(warning, &[lost.borrow()]).map_err(|Fatal| Raised)?;
        base.count_lost_write();
        Ok(())
    }
}
