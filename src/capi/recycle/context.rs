//! The context of a callback without a Context object of its own.
//!
//! `call_soon(f)` has to run `f` in a copy of the current context. A copy is a Context object that the
//! collector tracks, made now and thrown away a turn later; all it holds is a pointer to the variables, an
//! immutable mapping. So we keep that pointer instead, and run the callback in one *scratch* context that is
//! given the variables for the time of the call: 500 instructions less per callback.
//!
//! No public function reaches the variables. They are read and written at two private offsets, which are
//! used only if this version of CPython is in [`known_layout`] and [`self_test`] has found, at import, that what
//! lies there behaves as it must. Otherwise everything here falls back on `PyContext_CopyCurrent`.
//!
//! What a callee can see stays as it was: a Context that somebody keeps (a token of `ContextVar.set` holds
//! one) has an owner besides us, which its reference count tells, and is not used a second time; a handle that
//! is asked for its context gets a real one; a nested run finds the scratch context taken and makes another.

use std::cell::Cell;
use std::ptr::null_mut;

use pyo3::ffi;

use crate::capi::call::{copy_current_context, in_context};
use crate::capi::error::Raised;
use crate::capi::fallible::string;
use crate::capi::object::{Borrowed, Ref, Slot};

/// Where the two private fields lie, in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// `PyThreadState.context`: the current Context or null.
    current: usize,
    /// `PyContext.ctx_vars`: the immutable mapping of the variables.
    variables: usize,
}

/// The layout of this version, if it was looked up and compared.
const fn known_layout() -> Option<Layout> {
    if cfg!(Py_GIL_DISABLED) || !cfg!(target_pointer_width = "64") || cfg!(Py_3_15) || cfg!(not(Py_3_11)) {
        None
    } else if cfg!(Py_3_12) {
        Some(Layout { current: 208, variables: 24 })
    } else {
        Some(Layout { current: 224, variables: 24 })
    }
}

/// What was proven at import. Guarded by the GIL.
struct State {
    layout: Cell<Option<Layout>>,
    /// The type of the variables, borrowed from the empty ones, which are kept.
    kind: Cell<*mut ffi::PyTypeObject>,
    empty: Slot,
    /// The scratch context, while no callback runs in it.
    scratch: Slot,
}

// SAFETY: touched only with the GIL held.
unsafe impl Sync for State {}

static STATE: State = State {
    layout: Cell::new(None),
    kind: Cell::new(null_mut()),
    empty: Slot::empty(),
    scratch: Slot::empty(),
};

impl Layout {
    /// # Safety
    /// `context` is a live Context and the layout is the interpreter's.
    #[inline(always)]
    unsafe fn variables_of(self, context: *mut ffi::PyObject) -> *mut *mut ffi::PyObject {
        // SAFETY: the caller's word: the field lies inside the object.
        unsafe { context.cast::<u8>().add(self.variables).cast() }
    }

    /// The current Context of this thread, borrowed, or null.
    ///
    /// # Safety
    /// The layout is the interpreter's, and the GIL is held.
    #[inline(always)]
    unsafe fn current(self) -> *mut ffi::PyObject {
        // SAFETY: the caller's word; the thread state of an attached thread is not null.
        unsafe { *ffi::PyThreadState_Get().cast::<u8>().add(self.current).cast() }
    }
}

/// What [`run_in`] runs a callback in: the given context, or what a copy of the current one would hold.
#[inline(always)]
pub(crate) fn context_for(given: Option<Borrowed<'_>>) -> Result<Ref, Raised> {
    if let Some(context) = given {
        return Ok(context.to_owned());
    }
    if let Some(layout) = STATE.layout.get() {
        // SAFETY: the layout is proven; a current context lives, and so do its variables.
        unsafe {
            let current = layout.current();
            if !current.is_null()
                && let Some(variables) = Ref::from_nullable(*layout.variables_of(current))
            {
                return Ok(variables);
            }
        }
    }
    copy_current_context()
}

/// Are these bare variables, not a Context?
#[inline(always)]
fn is_bare(context: &Ref) -> bool {
    // SAFETY: a live object. Before anything is proven the type is null, which no object has.
    unsafe { ffi::Py_TYPE(context.as_ptr()) == STATE.kind.get() }
}

/// A new Context with these variables.
#[cold]
fn made(layout: Layout, variables: Ref) -> Result<Ref, Raised> {
    // SAFETY: an owned reference or null with an error.
    let context = unsafe { Ref::from_owned(ffi::PyContext_New()) }.ok_or(Raised)?;
    drop(exchange(layout, &context, Some(variables)));
    Ok(context)
}

/// Puts variables into a Context that nobody is in, and gives back what it had.
#[inline(always)]
fn exchange(layout: Layout, context: &Ref, variables: Option<Ref>) -> Option<Ref> {
    // SAFETY: the layout is proven, and the field owns what it points to.
    unsafe {
        let field = layout.variables_of(context.as_ptr());
        let old = field.replace(variables.map_or(null_mut(), Ref::into_ptr));
        Ref::from_owned(old)
    }
}

/// The Context object that somebody wants to see: bare variables get one.
pub(crate) fn as_object(context: Ref) -> Result<Ref, Raised> {
    match known_layout() {
        Some(layout) if is_bare(&context) => made(layout, context),
        _ => Ok(context),
    }
}

/// Runs `body` in what [`context_for`] gave. If it fails, the Context it ran in comes back with the error.
#[inline(always)]
pub(crate) fn run_in<T>(context: Ref, body: impl FnOnce() -> Result<T, Raised>) -> Result<T, (Raised, Ref)> {
    let Some(layout) = known_layout().filter(|_| is_bare(&context)) else {
        return in_context(&context, body).map_err(|raised| (raised, context));
    };
    let scratch = match STATE.scratch.take() {
        Some(scratch) => {
            // What it had are the empty variables: nothing runs when they lose one of many owners.
            drop(exchange(layout, &scratch, Some(context)));
            scratch
        }
        None => match made(layout, context) {
            Ok(scratch) => scratch,
            Err(raised) => return Err((raised, Ref::none())),
        },
    };
    match in_context(&scratch, body) {
        Ok(value) => {
            give_back(layout, scratch);
            Ok(value)
        }
        Err(raised) => Err((raised, scratch)),
    }
}

/// Keeps the scratch context for the next callback, emptied, unless somebody else has hold of it.
#[inline(always)]
fn give_back(layout: Layout, scratch: Ref) {
    // SAFETY: a live object.
    if unsafe { ffi::Py_REFCNT(scratch.as_ptr()) } != 1 || !STATE.scratch.is_empty() {
        return;
    }
    let old = exchange(layout, &scratch, STATE.empty.get());
    STATE.scratch.set(Some(scratch));
    // Last, because it may run any code.
    drop(old);
}

/// Finds out whether the offsets hold. Called once, by the module's initialisation.
pub(crate) fn init() {
    let Some(layout) = known_layout() else { return };
    match self_test(layout) {
        Ok(Some(empty)) => {
            // SAFETY: a live object.
            STATE.kind.set(unsafe { ffi::Py_TYPE(empty.as_ptr()) });
            STATE.empty.set(Some(empty));
            STATE.layout.set(Some(layout));
        }
        Ok(None) => {}
        // The self-test itself failed (out of memory, a foreign context type): the public way is left.
        // SAFETY: the GIL is held.
        Err(Raised) => unsafe { ffi::PyErr_Clear() },
    }
}

/// The empty variables, if everything is where the layout says.
fn self_test(layout: Layout) -> Result<Option<Ref>, Raised> {
    // SAFETY: each function returns an owned reference or null with an error. The fields are read as words;
    // a word is followed as a pointer only after it was found equal in two contexts that must share it, and
    // the size of the object is tested first.
    unsafe {
        let first = Ref::from_owned(ffi::PyContext_New()).ok_or(Raised)?;
        let size = (*ffi::Py_TYPE(first.as_ptr())).tp_basicsize as usize;
        if layout.variables + size_of::<usize>() > size {
            return Ok(None);
        }
        let word = |context: &Ref| *layout.variables_of(context.as_ptr());
        let copy = Ref::from_owned(ffi::PyContext_Copy(first.as_ptr())).ok_or(Raised)?;
        let empty = word(&first);
        if empty.is_null() || empty != word(&copy) {
            return Ok(None);
        }
        let kind = ffi::Py_TYPE(empty);
        if std::ffi::CStr::from_ptr((*kind).tp_name) != c"hamt" {
            return Ok(None);
        }
        // A variable that is set changes the mapping of its context, and of no other.
        let variable =
            Ref::from_owned(ffi::PyContextVar_New(c"wakeloop".as_ptr(), null_mut())).ok_or(Raised)?;
        let value = string("seen")?;
        let outside = layout.current();
        let inside = in_context(&first, || {
            let token = ffi::PyContextVar_Set(variable.as_ptr(), value.as_ptr());
            drop(Ref::from_owned(token).ok_or(Raised)?);
            let nested = in_context(&copy, || Ok(layout.current() == copy.as_ptr()))?;
            Ok(nested && layout.current() == first.as_ptr())
        })?;
        let changed = word(&first);
        if !inside || layout.current() != outside || changed == empty || word(&copy) != empty {
            return Ok(None);
        }
        if changed.is_null() || ffi::Py_TYPE(changed) != kind {
            return Ok(None);
        }
        // Given that mapping, a context of ours has the value; and it lets go of it again.
        let before = ffi::Py_REFCNT(changed);
        let scratch = made(layout, Ref::from_borrowed(changed))?;
        let found = in_context(&scratch, || {
            let mut found = null_mut();
            if ffi::PyContextVar_Get(variable.as_ptr(), null_mut(), &mut found) < 0 {
                return Err(Raised);
            }
            Ok(Ref::from_owned(found).is_some_and(|found| found.as_ptr() == value.as_ptr()))
        })?;
        drop(scratch);
        if !found || ffi::Py_REFCNT(changed) != before {
            return Ok(None);
        }
        Ok(Some(Ref::from_borrowed(empty)))
    }
}

/// For the tests: switches the scratch context off or, where it was proven, on again. Returns whether it is on.
pub(crate) fn enable(on: bool) -> bool {
    STATE.layout.set(None);
    if on {
        init();
    }
    STATE.layout.get().is_some()
}
