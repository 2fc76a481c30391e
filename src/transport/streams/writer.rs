//! The native half of a StreamWriter: its fields.

use crate::capi::class::{ClassSpec, field};
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::methods::TypeSlot;
use crate::capi::native::{Dealloc, WeakList, native_class};
use crate::capi::{Ref, Slot};

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

    /// Has the instance no attributes in its dict? `object` is the writer.
    #[inline(always)]
    pub(super) fn is_plain(&self, object: &Ref) -> bool {
        object.has_no_items(&self.dict)
    }
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
