//! Runs a callback in a copy of the current context without making a Context object.
//!
//! `call_soon(f)` runs `f` in a copy of the current context. A copy is a Context object, which the collector tracks and
//! which is dropped one turn later. All that it has is a pointer to the variables, an immutable mapping. So
//! [`context_for`] keeps that pointer alone, and [`run_in`] lends the variables to one *scratch* context while the
//! callback runs in it. This saves 500 instructions a callback.
//!
//! No public function gives the variables. They are read and written at two private offsets. These are used only if
//! [`known_layout`] has them for this version of CPython, and [`self_test`] has found at import that the fields behave
//! as they must. Otherwise the functions here use `PyContext_CopyCurrent`.
//!
//! Why reuse is never observable:
//! - A program may keep the scratch context: the token of `ContextVar.set` refers to it. Its reference count then shows
//!   another owner, and it is not used again.
//! - A handle that is asked for its context makes a Context of its own ([`as_object`]).
//! - A callback that runs the loop again finds no scratch context, and another one is made.

use std::cell::Cell;
use std::ptr::null_mut;

use pyo3::ffi;

use crate::capi::call::{copy_context, copy_current_context, enter, in_context, leave};
use crate::capi::error::Raised;
use crate::capi::fallible::string;
use crate::capi::inspect::clear_error;
use crate::capi::object::{Borrowed, Ref, Slot};
use crate::capi::section::REUSES;

/// Where the two private fields are, in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// `PyThreadState.context`: the current Context or null.
    current: usize,
    /// `PyContext.ctx_vars`: the immutable mapping of the variables.
    variables: usize,
}

/// The layout of this version of CPython, for the versions whose source was read.
const fn known_layout() -> Option<Layout> {
    if !REUSES || !cfg!(target_pointer_width = "64") || cfg!(Py_3_16) || cfg!(not(Py_3_11)) {
        None
    } else if cfg!(Py_3_15) {
        Some(Layout { current: 232, variables: 24 })
    } else if cfg!(Py_3_12) {
        Some(Layout { current: 208, variables: 24 })
    } else {
        Some(Layout { current: 224, variables: 24 })
    }
}

/// What the self-test has found. Guarded by the GIL; without a GIL nothing is ever found.
struct ContextState {
    layout: Cell<Option<Layout>>,
    /// The type of the variables. The empty ones keep it alive.
    kind: Cell<*mut ffi::PyTypeObject>,
    empty: Slot,
    /// The scratch context, while no callback runs in it.
    scratch: Slot,
}

// SAFETY: touched only with the GIL held; without a GIL it is never written.
unsafe impl Sync for ContextState {}

static STATE: ContextState = ContextState {
    layout: Cell::new(None),
    kind: Cell::new(null_mut()),
    empty: Slot::empty(),
    scratch: Slot::empty(),
};

impl Layout {
    /// # Safety
    /// `context` is a live Context, and the field lies inside it.
    #[inline(always)]
    unsafe fn variables_of(self, context: *mut ffi::PyObject) -> *mut *mut ffi::PyObject {
        // SAFETY: the caller's contract.
        unsafe { context.cast::<u8>().add(self.variables).cast() }
    }

    /// The current Context of this thread, borrowed, or null.
    ///
    /// # Safety
    /// The layout is the interpreter's, and this thread is attached.
    #[inline(always)]
    unsafe fn current(self) -> *mut ffi::PyObject {
        // SAFETY: the caller's contract; the thread state of an attached thread is not null.
        unsafe { *ffi::PyThreadState_Get().cast::<u8>().add(self.current).cast() }
    }
}

/// What [`run_in`] runs a callback in: the given context, or what a copy of the current one would have.
#[inline(always)]
pub(crate) fn context_for(given: Option<Borrowed<'_>>) -> Result<Ref, Raised> {
    if let Some(context) = given {
        return Ok(context.to_owned());
    }
    if let Some(layout) = STATE.layout.get() {
        // SAFETY: the self-test has passed; a current context lives, and so do its variables.
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

/// The layout, if `context` is bare variables and not a Context.
#[inline(always)]
fn layout_of_bare(context: &Ref) -> Option<Layout> {
    // Before the self-test the type is null, which no object has.
    known_layout().filter(|_| context.kind() == STATE.kind.get())
}

/// A new Context with these variables.
#[cold]
fn with_variables(layout: Layout, variables: Ref) -> Result<Ref, Raised> {
    let context = new_context()?;
    drop(exchange(layout, &context, Some(variables)));
    Ok(context)
}

fn new_context() -> Result<Ref, Raised> {
    // SAFETY: an owned reference or null with an error.
    unsafe { Ref::from_owned(ffi::PyContext_New()) }.ok_or(Raised)
}

/// Puts variables into a Context in which nothing runs, and returns the old ones.
#[inline(always)]
fn exchange(layout: Layout, context: &Ref, variables: Option<Ref>) -> Option<Ref> {
    // SAFETY: the self-test has passed, or is about to find out with a context of its own; the field owns what it
    // points to.
    unsafe {
        let field = layout.variables_of(context.as_ptr());
        Ref::from_owned(field.replace(variables.map_or(null_mut(), Ref::into_ptr)))
    }
}

/// The Context object for Python code: bare variables get one.
pub(crate) fn as_object(context: Ref) -> Result<Ref, Raised> {
    match layout_of_bare(&context) {
        Some(layout) => with_variables(layout, context),
        None => Ok(context),
    }
}

/// The value of a context variable in what [`context_for`] returned. `None` without one, or if that cannot be entered.
pub(crate) fn value_in(context: Ref, variable: &Ref) -> Option<Ref> {
    let entered = enter_for_callback(context).map_err(|(raised, _)| drop(raised.take())).ok()?;
    let left = entered.leave(Ok(value_now(variable)));
    left.map_err(|(raised, _)| drop(raised.take())).ok()?
}

/// The value of a context variable in the current context. `None` without one.
pub(crate) fn value_now(variable: &Ref) -> Option<Ref> {
    let mut value = null_mut();
    // SAFETY: a live context variable, and a place for the result, which is an owned reference or null.
    unsafe {
        if ffi::PyContextVar_Get(variable.as_ptr(), null_mut(), &mut value) < 0 {
            clear_error();
        }
        Ref::from_owned(value)
    }
}

/// The context of a callback that runs: what [`context_for`] returned, or the scratch context with its variables.
#[derive(Debug)]
pub(crate) struct Entered {
    context: Ref,
    /// Of the scratch context.
    layout: Option<Layout>,
}

/// Enters what [`context_for`] returned. The caller passes the outcome of the callback to [`Entered::leave`]. (With a
/// closure for the callback, the compiler would not inline that.)
#[inline(always)]
pub(crate) fn enter_for_callback(context: Ref) -> Result<Entered, (Raised, Ref)> {
    let layout = layout_of_bare(&context);
    let context = match layout {
        None => context,
        Some(layout) => match STATE.scratch.take() {
            Some(scratch) => {
                // It had the empty variables, which have other owners: dropping this reference runs nothing.
                drop(exchange(layout, &scratch, Some(context)));
                scratch
            }
            None => with_variables(layout, context).map_err(|raised| (raised, Ref::none()))?,
        },
    };
    if enter(&context) { Ok(Entered { context, layout }) } else { Err((Raised, context)) }
}

impl Entered {
    /// Leaves the context. If the callback has failed, the context that it ran in comes back with the error.
    #[inline(always)]
    pub(crate) fn leave<T>(self, result: Result<T, Raised>) -> Result<T, (Raised, Ref)> {
        let Entered { context, layout } = self;
        match leave(&context, result) {
            Ok(value) => {
                if let Some(layout) = layout {
                    give_back(layout, context);
                }
                Ok(value)
            }
            Err(raised) => Err((raised, context)),
        }
    }
}

/// Keeps the scratch context for the next callback, with the empty variables, unless it has another owner.
#[inline(always)]
fn give_back(layout: Layout, scratch: Ref) {
    if !scratch.is_unique() || !STATE.scratch.is_empty() {
        return;
    }
    let old = exchange(layout, &scratch, STATE.empty.get());
    STATE.scratch.set(Some(scratch));
    // This comes last, because it may run any code.
    drop(old);
}

/// Tests the offsets. Called once, by the module's initialisation.
pub(crate) fn init() {
    let Some(layout) = known_layout() else { return };
    match self_test(layout) {
        Ok(Some(empty)) => {
            STATE.kind.set(empty.kind());
            STATE.empty.set(Some(empty));
            STATE.layout.set(Some(layout));
        }
        Ok(None) => {}
        // The test itself failed, for lack of memory or because of a foreign context type.
        Err(Raised) => clear_error(),
    }
}

/// The empty variables, if both fields behave as the layout says.
fn self_test(layout: Layout) -> Result<Option<Ref>, Raised> {
    let first = new_context()?;
    let copy = copy_context(&first)?;
    // SAFETY: the functions are given live objects, and return an owned reference or null with an error. The fields are
    // read as words, the first after the size of the object was tested. A word is followed as a pointer only after it
    // was found equal in two contexts that must share it.
    unsafe {
        if layout.variables + size_of::<usize>() > (*first.kind()).tp_basicsize as usize {
            return Ok(None);
        }
        let word = |context: &Ref| *layout.variables_of(context.as_ptr());
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
        // A context that is given this mapping has the value. When it is dropped, so is its reference to the mapping.
        let before = ffi::Py_REFCNT(changed);
        let scratch = with_variables(layout, Ref::from_borrowed(changed))?;
        let found = in_context(&scratch, || {
            let mut found = null_mut();
            if ffi::PyContextVar_Get(variable.as_ptr(), null_mut(), &mut found) < 0 {
                return Err(Raised);
            }
            Ok(Ref::from_owned(found).is_some_and(|found| found.is(&value)))
        })?;
        drop(scratch);
        Ok((found && ffi::Py_REFCNT(changed) == before).then(|| Ref::from_borrowed(empty)))
    }
}

/// Switches the scratch context off, or on again if the self-test passes. This is for tests. Returns whether it is
/// on.
pub(crate) fn enable(on: bool) -> bool {
    if !REUSES {
        return false;
    }
    STATE.layout.set(None);
    if on {
        init();
    }
    STATE.layout.get().is_some()
}
