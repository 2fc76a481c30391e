//! Builds the Python class of a kind of transport, with its finalizer, its `repr` and its garbage collection.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyType;

use super::closing::release;
use super::methods::{attributes, common};
use super::transport::{OFFSET, TransportBase, TransportKind};
use crate::capi::class::ClassSpec;
use crate::capi::collector::Visitor;
use crate::capi::error::{Outcome, undisturbed, unless_raised};
use crate::capi::fallible::{interned, py_tuple};
use crate::capi::imports::defined_class;
use crate::capi::inspect::integer;
use crate::capi::methods::{Attribute, Method, TypeSlot};
use crate::capi::once::Once;
use crate::capi::raised::ignored_in_finalizer;
use crate::capi::{Fallible, Fatal, Raised, Ref, Slot, This};
use crate::kernel::core::Core;
use crate::kernel::source::descriptor;

/// The alignment of the fields of every kind.
const ALIGNMENT: usize = align_of::<usize>();

/// The Python function that warns of a transport that was not closed. It is kept here, because transports are also
/// finalized while the interpreter ends, when the modules are gone.
static WARN_UNCLOSED: Once<Ref> = Once::new();

/// Warns of transports that were not closed with this function.
#[pyfunction]
pub(crate) fn _warn_unclosed_with(function: Bound<'_, PyAny>) {
    WARN_UNCLOSED.set(function.into());
}

/// asyncio's `__del__`: closes a transport that was not closed, with a ResourceWarning.
fn finalize<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    if this.is_released() {
        return Ok(());
    }
    let mut outcome = Outcome::default();
    if let Some(warn) = WARN_UNCLOSED.get() {
        warn.call(&[this.object()]).map_or_else(|Raised| ignored_in_finalizer(&finalizer(this)), drop);
    }
    outcome.note(release(this).map_err(|Raised| Fatal));
    let core = this.base().core();
    if core.runs_in_another_thread() {
        // The collector may run in any thread. What leaving wakes up belongs to the thread of the loop. The transport
        // lives on until then; it is not finalized again.
        core.call_native(this.object().to_owned(), leave::<T>);
    } else {
        outcome.note(T::leave(this).map_err(|Raised| Fatal));
    }
    Ok(outcome.finish()?)
}

/// The `__del__` of the transport's class, which a report of an error in it names. If it cannot be had, the loop.
#[cold]
fn finalizer<T: TransportKind>(this: This<'_, T>) -> Ref {
    let class = Ref::from(this.object().bind(this.py()).get_type().into_any());
    // The error of the warning stays set meanwhile.
    undisturbed(|| {
        let found = interned("__del__").and_then(|name| class.getattr(&name));
        unless_raised(found).unwrap_or_else(|| this.base().core().this())
    })
}

fn leave<T: TransportKind>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<T>() else { return Ok(()) };
    T::leave(this).or_else(|raised| core.unraisable(raised))
}

/// Visits the references of the base and the protocol, for the garbage collector.
pub(crate) fn traverse<T: TransportKind>(kind: &T, visitor: &mut Visitor) {
    let base = kind.base();
    visitor.reference(base.event_loop());
    visitor.slots([&base.owner, &base.dict, kind.protocol()]);
    visitor.slots(base.marks.slots());
    visitor.slots(clearable(base));
}

/// Drops references, for the garbage collector. Keeps the loop, because methods need it and the clear of the loop
/// breaks the cycle. Keeps the owner, because the descriptor has to be closed.
pub(crate) fn clear<T: TransportKind>(kind: &T) {
    let base = kind.base();
    clearable(base).into_iter().for_each(Slot::clear);
    base.dict.clear();
    kind.forget_protocol();
}

fn clearable(base: &TransportBase) -> [&Slot; 5] {
    [&base.context, &base.extra, &base.connection_made, &base.waiter, &base.lost_exception]
}

fn repr<T: TransportKind>(this: This<'_, T>) -> String {
    let base = this.base();
    let name = T::NAME.to_string_lossy();
    let mut text = format!("<wakeloop.{}", name.rsplit('.').next().unwrap_or(&name));
    if this.is_released() {
        text.push_str(&format!(" closed fd={}{}", descriptor(base.token.get()), T::CLOSED));
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

/// Builds the class of a kind, with these methods and attributes in addition to those of every transport. Called once,
/// at import.
pub(crate) fn make_class<'py, T: TransportKind>(
    py: Python<'py>,
    tables: &[&[Method<T>]],
    more: &[Attribute<T>],
) -> PyResult<Bound<'py, PyAny>> {
    const { assert!(align_of::<T>() <= ALIGNMENT) };
    let base = |name| defined_class(py, "asyncio.transports", name);
    let largest = base("_FlowControlMixin")?.cast_into::<PyType>()?;
    // SAFETY: a live type object.
    let size = unsafe { (*largest.as_type_ptr()).tp_basicsize } as usize;
    // Ordering: Relaxed. Each kind stores the same value, at import.
    OFFSET.store(size.next_multiple_of(ALIGNMENT), Ordering::Relaxed);
    let bases = T::BASES.iter().copied().map(base).collect::<PyResult<Vec<_>>>()?;
    let mut class = ClassSpec::<T>::new(T::NAME)
        .doc(T::DOC)
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
    let class = class.build(py)?;
    if let Some(size) = T::MAX_SIZE {
        class.setattr(Fallible("max_size"), integer(size)?.bind(py))?;
    }
    Ok(class)
}

/// Implements the traits that are the same for every kind. The arguments are the type, and the fields of its base and
/// of its protocol. The last argument is a closure that returns the other slots of the kind. Without it, the kind
/// implements `Traverse` itself.
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

        // `make_class` builds the class. Only `opening::create` makes instances.
        $crate::capi::native::native_class!(
            unsafe $kind,
            offset $crate::transport::base::transport::offset(),
            guard |it| it.$base.event_loop().as_ptr()
        );

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
