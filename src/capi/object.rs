//! References to Python objects without the bookkeeping of `Py<T>`.
//!
//! `Py<T>` may be dropped on any thread, so its drop checks whether this thread is attached to the interpreter. The
//! hot path always is: a [`Ref`] exists only on an attached thread, and decrements the count inline.
//!
//! | type | owns a reference | may change |
//! |---|---|---|
//! | [`Ref`] | yes | no |
//! | [`Borrowed`] | no: its owner outlives it | no |
//! | [`Slot`] | yes, or it is empty | yes: a field of a native object |
//!
//! What can be asked of any object is a method of [`Ref`], in [`inspect`](super::inspect).

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;

/// An owned reference to a Python object.
///
/// It is neither `Send` nor `Sync`, so it exists only on a thread that is attached to the interpreter; a closure that
/// runs detached cannot capture it. Dropping one may run any Python code, so never drop it while loop state is
/// borrowed.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Ref(NonNull<ffi::PyObject>);

impl Ref {
    /// Takes over the reference that the caller owns; `None` for null (a Python error is then set).
    ///
    /// # Safety
    /// `object` is null or an owned reference, and this thread is attached.
    #[inline(always)]
    pub(crate) unsafe fn from_owned(object: *mut ffi::PyObject) -> Option<Ref> {
        NonNull::new(object).map(Ref)
    }

    /// A new reference to a borrowed object.
    ///
    /// # Safety
    /// `object` points to a live Python object, and this thread is attached.
    #[inline(always)]
    pub(crate) unsafe fn from_borrowed(object: *mut ffi::PyObject) -> Ref {
        // SAFETY: the caller says that `object` lives, hence is not null, and that this thread is attached.
        unsafe {
            ffi::Py_INCREF(object);
            Ref(NonNull::new_unchecked(object))
        }
    }

    /// A new reference, or `None` for null.
    ///
    /// # Safety
    /// As [`Ref::from_borrowed`], but null is allowed.
    #[inline(always)]
    pub(crate) unsafe fn from_nullable(object: *mut ffi::PyObject) -> Option<Ref> {
        // SAFETY: not null in this branch; the rest is the caller's contract.
        if object.is_null() { None } else { Some(unsafe { Ref::from_borrowed(object) }) }
    }

    /// A reference to `None`.
    pub(crate) fn none() -> Ref {
        // SAFETY: `None` lives as long as the interpreter, and a `Ref` is made only on an attached thread.
        unsafe { Ref::from_borrowed(ffi::Py_None()) }
    }

    /// The object, borrowed.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut ffi::PyObject {
        self.0.as_ptr()
    }

    /// Passes the reference to C code, which takes it over.
    #[inline(always)]
    pub(crate) fn into_ptr(self) -> *mut ffi::PyObject {
        let object = self.0.as_ptr();
        std::mem::forget(self);
        object
    }

    /// Another reference to the same object.
    #[inline(always)]
    pub(crate) fn clone_ref(&self) -> Ref {
        // SAFETY: we own a reference, so the object lives; this thread is attached as for every use of a `Ref`.
        unsafe { Ref::from_borrowed(self.as_ptr()) }
    }

    /// The proof that this thread is attached.
    #[inline(always)]
    pub(crate) fn py(&self) -> Python<'_> {
        // SAFETY: a `Ref` is made on an attached thread and stays on it (see the type).
        unsafe { attached() }
    }

    /// The object for as long as `self` lives.
    #[inline(always)]
    pub(crate) fn borrow(&self) -> Borrowed<'_> {
        Borrowed(self.0, PhantomData)
    }

    /// The object as pyo3 sees it.
    pub(crate) fn bind<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        // SAFETY: we own a reference and `py` proves that this thread is attached.
        unsafe { Bound::from_borrowed_ptr(py, self.as_ptr()) }
    }
}

impl From<Bound<'_, PyAny>> for Ref {
    fn from(object: Bound<'_, PyAny>) -> Ref {
        // SAFETY: `into_ptr` hands out an owned, non-null reference, and `Bound` proves that this thread is attached.
        unsafe { Ref(NonNull::new_unchecked(object.into_ptr())) }
    }
}

impl Drop for Ref {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: we own the reference and this thread is attached (the type's contract).
        unsafe { ffi::Py_DECREF(self.as_ptr()) }
    }
}

/// The token of a thread that is attached. Debug builds check that it is.
///
/// # Safety
/// This thread is attached for as long as the token is used.
#[inline(always)]
pub(super) unsafe fn attached<'py>() -> Python<'py> {
    // SAFETY: the function may be called on every thread.
    debug_assert!(unsafe { ffi::PyGILState_Check() } != 0);
    // SAFETY: the caller's contract.
    unsafe { Python::assume_attached() }
}

/// An object that somebody else keeps alive for `'a`: the arguments of a call, the receiver of a method, the items of
/// a tuple. It gives everything that a [`Ref`] gives, and costs no reference count.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Borrowed<'a>(NonNull<ffi::PyObject>, PhantomData<&'a Ref>);

impl<'a> Borrowed<'a> {
    /// # Safety
    /// `object` points to a Python object that lives for `'a`, and this thread is attached.
    #[inline(always)]
    pub(crate) unsafe fn from_ptr(object: *mut ffi::PyObject) -> Borrowed<'a> {
        debug_assert!(!object.is_null());
        // SAFETY: a live object is not null.
        Borrowed(unsafe { NonNull::new_unchecked(object) }, PhantomData)
    }

    /// As [`Borrowed::from_ptr`], with `None` for null.
    ///
    /// # Safety
    /// As [`Borrowed::from_ptr`], or null.
    #[inline(always)]
    pub(crate) unsafe fn from_nullable(object: *mut ffi::PyObject) -> Option<Borrowed<'a>> {
        NonNull::new(object).map(|object| Borrowed(object, PhantomData))
    }

    /// `None`.
    pub(crate) fn none() -> Borrowed<'static> {
        // SAFETY: `None` lives as long as the interpreter.
        unsafe { Borrowed::from_ptr(ffi::Py_None()) }
    }

    /// A new reference.
    #[inline(always)]
    pub(crate) fn to_owned(self) -> Ref {
        self.clone_ref()
    }
}

impl Deref for Borrowed<'_> {
    type Target = Ref;

    #[inline(always)]
    fn deref(&self) -> &Ref {
        // SAFETY: both are transparent over the same pointer. A shared `Ref` is never dropped, and its object lives for
        // `'a`, which is longer than this borrow.
        unsafe { &*std::ptr::from_ref(self).cast::<Ref>() }
    }
}

/// A field of a native object that may hold a reference. Zeroed memory is an empty slot.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Slot(Cell<*mut ffi::PyObject>);

impl Slot {
    pub(crate) const fn empty() -> Slot {
        Slot(Cell::new(std::ptr::null_mut()))
    }

    pub(crate) fn new(object: Option<Ref>) -> Slot {
        Slot(Cell::new(object.map_or(std::ptr::null_mut(), Ref::into_ptr)))
    }

    /// The object or null, borrowed: do not keep it across anything that may run Python code.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut ffi::PyObject {
        self.0.get()
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_null()
    }

    /// A new reference to what the slot holds.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<Ref> {
        // SAFETY: a slot holds null or an owned reference, and is used only by attached threads.
        unsafe { Ref::from_nullable(self.0.get()) }
    }

    /// Moves the content out and leaves the slot empty.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Ref> {
        // SAFETY: the slot owned this reference and no longer does.
        unsafe { Ref::from_owned(self.0.replace(std::ptr::null_mut())) }
    }

    /// Fills the slot. The old content is dropped after that, because its destructor may use the slot.
    #[inline(always)]
    pub(crate) fn set(&self, object: Option<Ref>) {
        let new = object.map_or(std::ptr::null_mut(), Ref::into_ptr);
        let old = self.0.replace(new);
        // SAFETY: the slot owned `old` and no longer does.
        drop(unsafe { Ref::from_owned(old) });
    }

    pub(crate) fn clear(&self) {
        drop(self.take());
    }

    /// For a pyo3 class's `__traverse__`.
    pub(crate) fn visit_with(&self, visit: &pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::gc::PyTraverseError> {
        let object = self.0.get();
        if object.is_null() {
            return Ok(());
        }
        // SAFETY: `Py` is a transparent non-null pointer, and the slot keeps the object alive.
        visit.call(unsafe { &*(&raw const object).cast::<Py<PyAny>>() })
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot::empty()
    }
}

impl Drop for Slot {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: null or the reference that the slot owns. Nothing reads the slot any more.
        drop(unsafe { Ref::from_owned(self.0.get()) });
    }
}

#[cfg(not(Py_3_13))]
unsafe extern "C" {
    /// Public since 3.13, and the same function under a private name before.
    #[link_name = "_Py_IsFinalizing"]
    fn Py_IsFinalizing() -> std::ffi::c_int;
}
#[cfg(Py_3_13)]
use pyo3::ffi::Py_IsFinalizing;

/// Is the interpreter shutting down? Then modules may be torn down already, and warnings and reports are skipped.
pub(crate) fn interpreter_ends() -> bool {
    // SAFETY: reads a flag; callable at any time.
    unsafe { Py_IsFinalizing() != 0 }
}
