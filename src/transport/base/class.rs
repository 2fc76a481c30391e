//! The class of a kind of transport: how it is made, and what the collector, `repr` and the end of an object ask.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyType;

use super::closing::{leave_table, release};
use super::methods::{attributes, common};
use super::transport::{OFFSET, TransportBase, TransportKind};
use crate::capi::class::ClassSpec;
use crate::capi::collector::Visitor;
use crate::capi::error::Outcome;
use crate::capi::fallible::py_tuple;
use crate::capi::methods::{Attribute, Method, TypeSlot};
use crate::capi::object::interpreter_ends;
use crate::capi::{Fallible, Fatal, Raised, Slot, This};
use crate::event_loop::source::descriptor;

/// The fields of every kind begin at a multiple of this.
const ALIGNMENT: usize = align_of::<usize>();

/// asyncio's `__del__`: a transport that nobody has closed is closed here, with a ResourceWarning.
fn finalize<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    if this.is_released() {
        return Ok(());
    }
    if T::OWNS_DESCRIPTOR && interpreter_ends() {
        leave_table(this);
        return Ok(());
    }
    let mut outcome = Outcome::default();
    outcome.note(this.base().core().support("unclosed_transport", &[this.object()]));
    outcome.note(release(this).map_err(|Raised| Fatal));
    outcome.note(T::leave(this).map_err(|Raised| Fatal));
    Ok(outcome.finish()?)
}

/// The collector's questions to every kind.
pub(crate) fn traverse<T: TransportKind>(kind: &T, visitor: &mut Visitor) {
    let base = kind.base();
    visitor.reference(base.event_loop());
    visitor.slots([&base.owner, &base.dict, kind.protocol()]);
    visitor.slots(clearable(base));
}

/// What the collector may drop. The loop stays, because methods need it and its own clear breaks the cycle; the owner
/// stays, because the descriptor is still to be closed.
pub(crate) fn clear<T: TransportKind>(kind: &T) {
    let base = kind.base();
    clearable(base).into_iter().for_each(Slot::clear);
    base.dict.clear();
    kind.forget_protocol();
}

fn clearable(base: &TransportBase) -> [&Slot; 5] {
    [&base.context, &base.extra, &base.made, &base.waiter, &base.lost_with]
}

fn repr<T: TransportKind>(this: This<'_, T>) -> String {
    let base = this.base();
    let name = T::NAME.to_string_lossy();
    let mut text = format!("<wakeloop.{}", name.rsplit('.').next().unwrap_or(&name));
    if this.is_released() {
        text.push_str(&format!(" closed fd={}", descriptor(base.token.get())));
    } else if base.life.is_closing() {
        text.push_str(" closing");
    }
    if base.fd.get() >= 0 {
        text.push_str(&format!(" fd={}", base.fd.get()));
        this.describe(&mut text);
    }
    text.push('>');
    text
}

/// Makes a kind's class, with these methods beside those that every transport has. Called once, at import.
pub(crate) fn make_class<'py, T: TransportKind>(
    py: Python<'py>,
    tables: &[&[Method<T>]],
    more: &[Attribute<T>],
) -> PyResult<Bound<'py, PyAny>> {
    const { assert!(align_of::<T>() <= ALIGNMENT) };
    let module = py.import(Fallible("asyncio.transports"))?;
    let largest = module.getattr(Fallible("_FlowControlMixin"))?.cast_into::<PyType>()?;
    // SAFETY: a live type object.
    let size = unsafe { (*largest.as_type_ptr()).tp_basicsize } as usize;
    // Ordering: Relaxed. The same value each time, stored at import.
    OFFSET.store(size.next_multiple_of(ALIGNMENT), Ordering::Relaxed);
    let bases = T::BASES.iter().map(|base| module.getattr(Fallible(*base))).collect::<PyResult<Vec<_>>>()?;
    let mut class = ClassSpec::<T>::new(T::NAME)
        .bases(py_tuple(py, bases)?)
        .weaklist(T::WEAKLIST)
        .dict(T::DICT)
        .methods(&common())
        .attributes(&attributes())
        .attributes(&[T::owner_attribute()])
        .attributes(more)
        .slots(&[TypeSlot::dealloc(), TypeSlot::finalize(finalize::<T>), TypeSlot::repr(repr::<T>)])
        .slots(&TypeSlot::collected());
    for table in tables {
        class = class.methods(table);
    }
    class.build(py)
}

/// The implementations of traits that are the same for every kind, given the names of its base and its protocol. A closure
/// gives the slots that a kind has of its own; a kind that has more than slots implements `Traverse` by itself.
macro_rules! native_transport {
    ($kind:ty, $base:ident, $($protocol:ident).+, $slots:expr) => {
        $crate::transport::base::class::native_transport!($kind, $base, $($protocol).+);

        impl $crate::capi::collector::Traverse for $kind {
            fn traverse(&self, visitor: &mut $crate::capi::collector::Visitor) {
                let slots: fn(&$kind) -> [&$crate::capi::Slot; 1] = $slots;
                $crate::transport::base::class::traverse(self, visitor);
                visitor.slots(slots(self));
            }

            fn clear(&self) {
                let slots: fn(&$kind) -> [&$crate::capi::Slot; 1] = $slots;
                $crate::transport::base::class::clear(self);
                slots(self).into_iter().for_each($crate::capi::Slot::clear);
            }
        }
    };
    ($kind:ty, $base:ident, $($protocol:ident).+) => {
        impl $crate::transport::base::transport::TransportFields for $kind {
            const WEAKLIST: $crate::capi::class::Field<$kind, $crate::capi::native::WeakList> =
                $crate::capi::class::field!($kind, $base.weaklist);
            const DICT: $crate::capi::class::Field<$kind, $crate::capi::Slot> =
                $crate::capi::class::field!($kind, $base.dict);

            #[inline(always)]
            fn base(&self) -> &$crate::transport::base::transport::TransportBase {
                &self.$base
            }

            #[inline(always)]
            fn protocol(&self) -> &$crate::capi::Slot {
                &self.$($protocol).+
            }
        }

        // `make_class` builds the class, of which `opening::create` makes every instance.
        $crate::capi::native::native_class!(unsafe $kind, offset $crate::transport::base::transport::offset());

        impl $crate::capi::native::Dealloc for $kind {
            const FINALIZER: bool = true;

            #[inline(always)]
            fn is_finished(&self) -> bool {
                $crate::transport::base::transport::TransportKind::is_released(self)
            }

            #[inline(always)]
            fn weaklist(&self) -> Option<&$crate::capi::native::WeakList> {
                Some(&self.$base.weaklist)
            }
        }
    };
}
pub(crate) use native_transport;
