//! The beginning of a transport: it is created for a descriptor, and a queued callback calls `connection_made`.

use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::closing::watch_first;
use super::reporting::notify_made;
use super::transport::{TransportBase, TransportKind};
use super::watching::register_edge;
use crate::capi::call::given_or_copied;
use crate::capi::error::{Outcome, raise_errno, raise_os_error, undisturbed};
use crate::capi::imports::imports;
use crate::capi::native;
use crate::capi::{Fallible, Fatal, Raised, Ref, This};
use crate::kernel::completion::complete;
use crate::kernel::core::Core;
use crate::reactor::{Interest, Readiness};

/// The parts of a new transport.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) fd: RawFd,
    /// The Python object that owns the descriptor, if there is one.
    pub(crate) owner: Option<Ref>,
    pub(crate) protocol: Ref,
    pub(crate) context: Ref,
    pub(crate) waiter: Option<Ref>,
    /// The dict for `get_extra_info`. The transport may change it.
    pub(crate) extra: Option<Ref>,
    /// `Some` if the descriptor is in the loop's table already, in an entry of the caller, and is registered
    /// edge-triggered for both directions. The value is what the poller has reported so far.
    pub(crate) registered: Option<Readiness>,
}

impl Parts {
    /// The parts for an object with a `fileno()`. Without a context, uses a copy of the current one.
    pub(crate) fn of_owner(
        owner: Bound<'_, PyAny>,
        protocol: Bound<'_, PyAny>,
        waiter: Option<Bound<'_, PyAny>>,
        extra: Option<Ref>,
        context: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Parts> {
        let fd: RawFd = owner.call_method0(Fallible("fileno"))?.extract()?;
        if fd < 0 {
            return Err(raise_errno(libc::EBADF).into());
        }
        Ok(Parts {
            fd,
            owner: Some(owner.into()),
            protocol: protocol.into(),
            context: given_or_copied(context)?,
            waiter: waiter.map(Ref::from),
            extra,
            registered: None,
        })
    }
}

/// Creates a transport and queues its start. On failure the caller keeps the descriptor.
pub(crate) fn create<T: TransportKind>(
    core: &Core,
    parts: Parts,
    make: impl FnOnce(TransportBase) -> T,
) -> Result<Ref, Raised> {
    core.check_process()?;
    core.check_usable()?;
    // As in asyncio, the method is looked up now, so an object that is not a protocol raises here.
    let made = parts.protocol.getattr(&imports().connection_made)?;
    let object = native::create_with(|| {
        make(TransportBase::new(core, parts.context, made, parts.waiter, parts.extra))
    })?;
    let Some(this) = object.downcast::<T>() else { return Err(Raised) };
    this.track();
    this.set_protocol(parts.protocol)?;
    T::enter(this)?;
    core.note_io();
    let entered = if parts.registered.is_some() {
        core.replace_source::<T>(parts.fd, object.clone_ref()).ok_or_else(|| raise_errno(libc::EBADF))
    } else {
        core.insert_source::<T>(parts.fd, object.clone_ref()).map_err(|error| raise_os_error(&error))
    };
    let token = entered.inspect_err(|_| {
        undisturbed(|| T::leave(this).unwrap_or_else(|Raised| object.write_unraisable()));
    })?;
    // From here on the transport owns the descriptor.
    let base = this.base();
    base.owner.set(parts.owner);
    base.fd.set(parts.fd);
    base.token.set(token);
    base.watched.set(parts.registered.map(|_| Interest::BOTH));
    base.pending_readiness.set(parts.registered.unwrap_or(Readiness::EMPTY));
    core.call_native(object.clone_ref(), start::<T>);
    Ok(object)
}

/// Makes the transport the owner of its descriptor's events again, if another transport on the same socket has them:
/// asyncio of Python 3.11 allows that, and gives the events to the transport that began or resumed to read last.
#[inline(always)]
pub(super) fn take_back<T: TransportKind>(this: This<'_, T>, core: &Core) -> Result<(), Raised> {
    #[cold]
    fn take<T: TransportKind>(this: This<'_, T>, core: &Core, fd: RawFd) -> Result<(), Raised> {
        let is_others = core.fds.source(fd).is_some() && this.descriptor() == fd;
        if !is_others || core.is_polling() || core.is_parents() {
            return Ok(());
        }
        let entered = core.insert_source::<T>(fd, this.object().to_owned());
        let base = this.base();
        base.token.set(entered.map_err(|error| raise_os_error(&error))?);
        base.watched.set(None);
        if T::EDGE_TRIGGERED {
            register_edge(this, core).map_err(|error| raise_os_error(&error))
        } else {
            Ok(())
        }
    }
    let fd = this.base().fd.get();
    if core.fds.token(fd) == this.base().token.get() { Ok(()) } else { take(this, core, fd) }
}

/// Calls `connection_made`, begins to watch, and completes the future that waits for the transport. A fatal error in
/// `connection_made` is returned after the rest is done, so the transport works in the next run of the loop.
fn start<T: TransportKind>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<T>() else { return Ok(()) };
    let base = this.base();
    let mut outcome = Outcome::default();
    if let Some(made) = base.connection_made.take() {
        outcome.note(notify_made(this, core, &made));
    }
    base.life.start();
    let was_watched = base.is_watched();
    outcome.note(watch_first(this, core));
    let waiter = base.waiter.take();
    if let Some(waiter) = &waiter {
        outcome.note(complete(core, waiter));
    }
    T::started(this, core, was_watched && waiter.is_some());
    outcome.finish()
}
