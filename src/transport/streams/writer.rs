//! The native half of a StreamWriter: its fields, and the check whether `drain` has to wait.

use super::classes::{CLASSES, plain_reader};
use super::reader::has_no_items;
use crate::capi::class::{ClassSpec, field};
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::imports::imports;
use crate::capi::inspect::boolean;
use crate::capi::methods::TypeSlot;
use crate::capi::native::{Dealloc, WeakList, native_class};
use crate::capi::{Raised, Ref, Slot};
use crate::transport::stream::state::Stream;

/// Indices of attributes in the list that `wakeloop._streams` passes.
const PAUSED: usize = 1;
const CONNECTION_LOST: usize = 2;

/// The fields. If all bytes are zero, `__init__` was not called yet.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) transport: Slot,
    pub(super) protocol: Slot,
    pub(super) reader: Slot,
    pub(super) event_loop: Slot,
    pub(super) complete: Slot,
    weaklist: WeakList,
    dict: Slot,
}

// `class` builds the class. Zeroed memory is a valid writer: empty slots, no weak references.
native_class!(unsafe Writer);

/// Begins the class. [`super::writer_python`] adds its methods and attributes.
pub(super) fn class<'py>() -> ClassSpec<'py, Writer> {
    // SAFETY: zeroed memory is a valid writer.
    unsafe { ClassSpec::new(c"wakeloop._core.StreamWriter").base_class() }
        .doc(c"StreamWriter(transport, protocol, reader, loop)\n--\n\nThe native half of wakeloop.StreamWriter.")
        .weaklist(field!(Writer, weaklist))
        .dict(field!(Writer, dict))
        .slots(&[TypeSlot::dealloc()])
        .slots(&TypeSlot::collected())
}

impl Writer {
    fn slots(&self) -> [&Slot; 6] {
        [&self.transport, &self.protocol, &self.reader, &self.event_loop, &self.complete, &self.dict]
    }

    /// The transport, if it is an unpatched stream transport of ours.
    #[inline(always)]
    pub(super) fn plain_transport(&self) -> Option<Ref> {
        if !CLASSES.get()?.transport.is_unpatched() {
            return None;
        }
        self.transport.get().filter(|transport| {
            transport.downcast::<Stream>().is_some_and(|stream| stream.base.has_no_own_attributes())
        })
    }
}

/// The fields of a plain writer.
#[inline(always)]
pub(super) fn plain_writer(object: &Ref) -> Option<&Writer> {
    let classes = CLASSES.get()?;
    if !classes.writer.is_class_of(object) || !classes.writer.is_unpatched() {
        return None;
    }
    let writer = object.downcast::<Writer>()?.fields();
    has_no_items(&writer.dict).then_some(writer)
}

/// Would asyncio's `drain` return without waiting and without an error?
#[inline(always)]
pub(super) fn is_drained(object: &Ref) -> Result<bool, Raised> {
    let (Some(writer), Some(classes)) = (plain_writer(object), CLASSES.get()) else { return Ok(false) };
    if let Some(reader) = writer.reader.get()
        && plain_reader(&reader).is_none_or(|reader| !reader.exception.is_empty())
    {
        return Ok(false);
    }
    let transport = writer.plain_transport();
    let closing = match transport.as_ref().and_then(|transport| transport.downcast::<Stream>()) {
        Some(stream) => stream.base.life.is_closing(),
        None => asked_closing(writer)?,
    };
    let Some(protocol) = writer.protocol.get() else { return Ok(false) };
    if closing || !classes.protocol.is_unpatched_on(&protocol)? {
        return Ok(false);
    }
    let is_false =
        |index| -> Result<bool, Raised> { Ok(classes.protocol.get(&protocol, index)?.is(&boolean(false))) };
    Ok(is_false(PAUSED)? && is_false(CONNECTION_LOST)?)
}

/// Calls `transport.is_closing()` of any transport. A result other than `False` counts as true.
fn asked_closing(writer: &Writer) -> Result<bool, Raised> {
    let Some(transport) = writer.transport.get() else { return Ok(true) };
    let closing = transport.call_method(&imports().is_closing, &[])?;
    Ok(!closing.is(&boolean(false)))
}

impl Traverse for Writer {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slots(self.slots());
    }

    fn clear(&self) {
        self.slots().into_iter().for_each(Slot::clear);
    }
}

impl Dealloc for Writer {
    fn weaklist(&self) -> Option<&WeakList> {
        Some(&self.weaklist)
    }
}
