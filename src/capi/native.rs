//! Rust structs that live inside Python objects.
//!
//! A native object is a Python object that begins with its `PyObject`, may continue with the fields of a Python base
//! class, and then has the fields of one Rust struct. [`Native`] says where they begin and which class such objects
//! have; [`create`] makes one; [`This`] is how a method sees it. The fields change behind a shared reference only, so
//! they are cells.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::call::guard;
use super::error::Raised;
use super::exceptions::Exception;
use super::object::{Borrowed, Ref};
use super::recycle::freelist::Freelist;
use super::section::{self, AS_FREE_THREADED, FREE_THREADED};
use super::shared;

/// A struct that is part of every instance of one class.
///
/// # Safety
/// - No other type has the same [`Class`], and it is set by [`ClassSpec::build`](super::class::ClassSpec::build) or, for
///   a pyo3 class, by [`Class::set`].
/// - In every instance of the class, and of its subclasses, a valid `Self` lies at [`Native::offset`] when Python
///   code, the collector or a method table first sees it. [`create`] ensures that. A class that Python code may
///   instantiate gives the default fields, or zeroed memory, which must then be a valid `Self`.
pub(crate) unsafe trait Native: Sized + 'static {
    /// Has the class a collector's header? Then it also is a [`Traverse`](super::collector::Traverse).
    const COLLECTED: bool = true;

    /// The class of the objects that have these fields.
    fn class() -> &'static Class;

    /// The list that keeps the memory of dead instances for new ones, if the class has one. Only a class without
    /// subclasses may have one, and no two classes share one.
    #[inline(always)]
    fn freelist() -> Option<&'static Freelist> {
        None
    }

    /// The object whose lock guards the fields on a free-threaded build; see [`section`](super::section). It is the same
    /// one as long as the object lives, and lives as long as the object. By default it is the object itself.
    #[inline(always)]
    fn guard(this: This<'_, Self>) -> *mut ffi::PyObject {
        this.object().as_ptr()
    }

    /// Where the fields begin, in bytes from the beginning of the object. By default they are right behind the
    /// `PyObject`. A struct behind the fields of a Python base class has an offset that was found at import.
    #[inline(always)]
    fn offset() -> usize {
        behind_header::<Self>()
    }
}

/// Implements [`Native`] for a struct, with a [`Class`] of its own.
///
/// `native_class!(unsafe SockCall, freelist 64)` keeps the memory of up to 64 dead instances. `collected false`, `offset`
/// with an expression and `guard` with a closure are the other items of the trait. A comment at each use says why the contract of
/// [`Native`] holds.
macro_rules! native_class {
    (
        unsafe $kind:ty
        $(, freelist $most:literal)?
        $(, collected $collected:literal)?
        $(, offset $offset:expr)?
        $(, guard $guard:expr)?
    ) => {
        // SAFETY: see the comment at the use.
        unsafe impl $crate::capi::native::Native for $kind {
            $(const COLLECTED: bool = $collected;)?

            #[inline(always)]
            fn class() -> &'static $crate::capi::native::Class {
                static CLASS: $crate::capi::native::Class = $crate::capi::native::Class::new();
                &CLASS
            }

            $(
                #[inline(always)]
                fn freelist() -> Option<&'static $crate::capi::recycle::freelist::Freelist> {
                    static DEAD: $crate::capi::recycle::freelist::Freelist =
                        $crate::capi::recycle::freelist::Freelist::new($most);
                    Some(&DEAD)
                }
            )?

            $(
                #[inline(always)]
                fn offset() -> usize {
                    $offset
                }
            )?

            $(
                #[inline(always)]
                fn guard(this: $crate::capi::native::This<'_, Self>) -> *mut pyo3::ffi::PyObject {
                    let guard: fn(&Self) -> *mut pyo3::ffi::PyObject = $guard;
                    guard(this.fields())
                }
            )?
        }
    };
}
pub(crate) use native_class;

/// The first place behind a `PyObject` where a `T` can lie.
const fn behind_header<T>() -> usize {
    size_of::<ffi::PyObject>().next_multiple_of(align_of::<T>())
}

/// A class that is made once, at import, and lives as long as the process.
#[derive(Debug)]
pub(crate) struct Class(AtomicPtr<ffi::PyTypeObject>);

impl Class {
    pub(crate) const fn new() -> Class {
        Class(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The type object, or null before it is made.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut ffi::PyTypeObject {
        // Ordering: Relaxed. It is stored at import, and the import lock orders that before every reader.
        self.0.load(Ordering::Relaxed)
    }

    /// Is `object` an instance of the class or of a subclass?
    #[inline(always)]
    pub(crate) fn is_class_of(&self, object: &Ref) -> bool {
        let (kind, class) = (object.kind(), self.as_ptr());
        // The classes of the package are direct subclasses of ours, and a look at their base is cheaper than the call.
        // SAFETY: two live types, or null before the class is made, of which nothing is an instance.
        kind == class
            || !class.is_null()
                && unsafe { shared::base_of(kind) == class || ffi::PyType_IsSubtype(kind, class) != 0 }
    }

    /// Is `object` an instance of exactly this class?
    #[inline(always)]
    pub(crate) fn is_exact_class_of(&self, object: &Ref) -> bool {
        object.kind() == self.as_ptr()
    }

    /// Is `class` derived from this one?
    pub(crate) fn is_base_of(&self, class: &Bound<'_, PyAny>) -> bool {
        class.cast::<PyType>().is_ok_and(|class| {
            let ours = self.as_ptr();
            // SAFETY: two live types.
            !ours.is_null() && unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), ours) != 0 }
        })
    }

    /// Remembers a class. Called once, at import.
    ///
    /// # Safety
    /// The contract of [`Native`] holds for it and for the struct that names this `Class`.
    pub(crate) unsafe fn set(&self, class: &Bound<'_, PyType>) {
        let owned = Ref::from(class.clone().into_any());
        shared::never_count(&owned);
        self.0.store(owned.into_ptr().cast(), Ordering::Relaxed);
    }
}

/// A native object and its fields, for the time of a call: the receiver of a method.
#[derive(Debug)]
pub(crate) struct This<'a, T> {
    object: Borrowed<'a>,
    fields: &'a T,
}

impl<T> Clone for This<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for This<'_, T> {}

impl<'a, T: Native> This<'a, T> {
    /// Debug builds check that this thread is in the section of the object's guard, or has the only reference to it.
    ///
    /// # Safety
    /// `object` is an instance of `T`'s class and lives for `'a`, and this thread is attached.
    #[inline(always)]
    #[track_caller]
    pub(crate) unsafe fn from_ptr(object: *mut ffi::PyObject) -> This<'a, T> {
        // SAFETY: the caller's contract.
        let this = unsafe { This::<T>::outside(object) };
        debug_assert!(
            section::is_held(T::guard(this)) || this.object.is_unique(),
            "a {} is used outside of its critical section",
            this.object.kind_name()
        );
        this
    }

    /// As [`This::from_ptr`], for a caller that uses the fields only after it has begun the section, and for the collector,
    /// which runs while all other threads stand still.
    ///
    /// # Safety
    /// As for [`This::from_ptr`].
    #[inline(always)]
    pub(crate) unsafe fn outside(object: *mut ffi::PyObject) -> This<'a, T> {
        // SAFETY: the caller's contract, and the contract of `Native`.
        unsafe { This { object: Borrowed::from_ptr(object), fields: &*fields_of(object) } }
    }
}

impl<'a, T> This<'a, T> {
    /// The object itself.
    #[inline(always)]
    pub(crate) fn object(self) -> Borrowed<'a> {
        self.object
    }

    /// Its fields, for as long as the object lives.
    #[inline(always)]
    pub(crate) fn fields(self) -> &'a T {
        self.fields
    }

    /// The proof that this thread is attached.
    #[inline(always)]
    pub(crate) fn py(&self) -> Python<'_> {
        self.object.py()
    }
}

impl<T> Deref for This<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.fields
    }
}

/// Calls `body` with a native object, in the section of its guard.
///
/// # Safety
/// `object` is an instance of `T`'s class and lives for `'a`, and this thread is attached.
#[inline(always)]
pub(crate) unsafe fn in_section<'a, T: Native, R>(
    object: *mut ffi::PyObject,
    body: impl FnOnce(This<'a, T>) -> R,
) -> R {
    // SAFETY: the caller's contract. The guard lives as long as the object.
    unsafe {
        let this = This::outside(object);
        section::hold(T::guard(this), || body(this))
    }
}

impl Ref {
    /// The native fields, if this is an instance of `T`'s class or of a subclass.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn downcast<T: Native>(&self) -> Option<This<'_, T>> {
        // SAFETY: the type was checked.
        if T::class().is_class_of(self) { Some(unsafe { This::from_ptr(self.as_ptr()) }) } else { None }
    }

    /// As [`Ref::downcast`], outside of a section, for fields that any thread may use.
    #[inline(always)]
    pub(crate) fn downcast_sync<T: Native + Sync>(&self) -> Option<This<'_, T>> {
        // SAFETY: the type was checked.
        if T::class().is_class_of(self) { Some(unsafe { This::outside(self.as_ptr()) }) } else { None }
    }

    /// Calls `body` with the native fields, in the section of their guard, if this is an instance of `T`'s class or of
    /// a subclass.
    #[inline(always)]
    pub(crate) fn with_native<T: Native, R>(&self, body: impl FnOnce(This<'_, T>) -> R) -> Option<R> {
        // SAFETY: the type was checked, and this reference keeps the object alive.
        T::class().is_class_of(self).then(|| unsafe { in_section(self.as_ptr(), body) })
    }
}

/// Where the fields of an instance are.
///
/// # Safety
/// `object` is an instance of `T`'s class, or memory for one.
#[inline(always)]
unsafe fn fields_of<T: Native>(object: *mut ffi::PyObject) -> *mut T {
    // SAFETY: the fields lie inside the object.
    unsafe { object.cast::<u8>().add(T::offset()).cast() }
}

/// Makes an instance with these fields. The collector does not track it before [`This::track`].
#[inline(always)]
pub(crate) fn create<T: Native>(fields: T) -> Result<Ref, Raised> {
    create_with(|| fields)
}

/// As [`create`], but the fields are made directly in the object, because moving a large struct costs as much as
/// making it. A panic in `fields` leaks the memory.
#[inline(always)]
pub(crate) fn create_with<T: Native>(fields: impl FnOnce() -> T) -> Result<Ref, Raised> {
    let class = T::class().as_ptr();
    if class.is_null() || T::offset() < size_of::<ffi::PyObject>() {
        return Err(Exception::SystemError.raise("a native class is used before it is made"));
    }
    // SAFETY: the class has room for the fields behind its header; those of a base class are zeroed, which for the
    // slots of a Python class means empty. Ours are written before anybody sees the object, the collector included.
    unsafe {
        let object = if let Some(object) = T::freelist().and_then(Freelist::take) {
            object
        } else if T::COLLECTED {
            ffi::PyObject_GC_New::<ffi::PyObject>(class)
        } else {
            ffi::PyObject_New::<ffi::PyObject>(class)
        };
        if object.is_null() {
            return Err(Raised);
        }
        let place = fields_of::<T>(object);
        let base_fields = object.add(1).cast::<u8>();
        base_fields.write_bytes(0, place.cast::<u8>().offset_from_unsigned(base_fields));
        place.write(fields());
        Ref::from_owned(object).ok_or(Raised)
    }
}

/// `tp_new` of a class whose instances begin with the default fields.
pub(super) unsafe extern "C" fn new_default<T: Native + Default>(
    class: *mut ffi::PyTypeObject,
    _: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        let fields = T::default();
        // SAFETY: CPython's call for the class or a subclass, whose instances have room for the fields. The collector
        // tracks the object already, but does not run before they are written.
        unsafe {
            let object = ffi::PyType_GenericAlloc(class, 0);
            if !object.is_null() {
                fields_of::<T>(object).write(fields);
            }
            object
        }
    })
}

impl<T: Native> This<'_, T> {
    /// Makes the collector track the object, if it does not yet.
    pub(crate) fn track(self) {
        let object = self.object.as_ptr();
        // SAFETY: a live object, with a collector's header if the class has one; its fields are valid.
        unsafe {
            if T::COLLECTED && ffi::PyObject_GC_IsTracked(object) == 0 {
                ffi::PyObject_GC_Track(object.cast());
            }
        }
    }
}

/// The head of an object's list of weak references, which the interpreter maintains.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct WeakList(Cell<*mut ffi::PyObject>);

impl WeakList {
    pub(crate) const fn new() -> WeakList {
        WeakList(Cell::new(std::ptr::null_mut()))
    }

    /// May there be no weak reference? On a free-threaded build the interpreter has to look, in a lock of its own.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        !FREE_THREADED && self.0.get().is_null()
    }
}

/// How instances are deallocated. [`dealloc`] does what is the same for every class: the finalizer runs, the
/// collector untracks the object, weak references are cleared.
pub(crate) trait Dealloc: Native {
    /// Has the class a finalizer (`tp_finalize`)?
    const FINALIZER: bool = false;

    /// Has the finalizer nothing to do for this instance? Then it is not called.
    #[inline(always)]
    fn is_finished(&self) -> bool {
        false
    }

    /// Where the class says that its weak references are, if it has them.
    #[inline(always)]
    fn weaklist(&self) -> Option<&WeakList> {
        None
    }

    /// Ends the instance. Dropping it drops the fields and frees the memory.
    #[inline(always)]
    fn dealloc(dead: Dead<Self>) {
        dead.free();
    }
}

/// An instance without references: its fields are still valid, and its memory is freed with the value.
#[derive(Debug)]
pub(crate) struct Dead<T: Native>(*mut ffi::PyObject, PhantomData<T>);

impl<T: Native> Dead<T> {
    /// # Safety
    /// `object` is an instance of `T`'s class without references, in its `tp_dealloc`; the collector does not track it,
    /// and nothing refers to it weakly.
    #[inline(always)]
    unsafe fn new(object: *mut ffi::PyObject) -> Dead<T> {
        Dead(object, PhantomData)
    }

    /// Its class, which is a subclass of `T`'s where Python code has made one.
    pub(crate) fn kind(&self) -> *mut ffi::PyTypeObject {
        // SAFETY: the type of an object whose memory is still there.
        unsafe { ffi::Py_TYPE(self.0) }
    }
}

impl<T: Native> Deref for Dead<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the contract of `new`: the fields are valid until they are dropped below.
        unsafe { &*fields_of(self.0) }
    }
}

impl<T: Native> Dead<T> {
    /// Drops the fields and frees the memory. The compiler inlines this, but not the `Drop` of a value.
    #[inline(always)]
    pub(crate) fn free(self) {
        // SAFETY: the value is not used or dropped after this.
        unsafe { ManuallyDrop::new(self).free_in_place() };
    }

    /// # Safety
    /// The value is not used after this.
    #[inline(always)]
    unsafe fn free_in_place(&mut self) {
        // SAFETY: the contract of `new`; this is the only place that drops the fields. The type is kept alive by the
        // reference of its instance until the memory is free.
        unsafe {
            std::ptr::drop_in_place(fields_of::<T>(self.0));
            if T::freelist().is_some_and(|list| list.keep(self.0)) {
                return;
            }
            let kind = ffi::Py_TYPE(self.0);
            if T::COLLECTED {
                ffi::PyObject_GC_Del(self.0.cast());
            } else {
                ffi::PyObject_Free(self.0.cast());
            }
            ffi::Py_DECREF(kind.cast());
        }
    }
}

impl<T: Native> Drop for Dead<T> {
    fn drop(&mut self) {
        // SAFETY: the value ends with this.
        unsafe { self.free_in_place() };
    }
}

/// `tp_dealloc`.
pub(super) unsafe extern "C" fn dealloc<T: Dealloc>(object: *mut ffi::PyObject) {
    // SAFETY: CPython's call for an instance without references. Its fields are valid, and keep the guard alive. The
    // collector's header is there if the class says so.
    unsafe {
        // Waiting for the section may let another thread collect, which would deallocate what it finds without references.
        let tracked = AS_FREE_THREADED && T::COLLECTED && ffi::PyObject_GC_IsTracked(object) != 0;
        if tracked {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        section::hold_last(object, T::guard(This::outside(object)), || end::<T>(object, tracked));
    }
}

/// # Safety
/// As for `tp_dealloc`.
#[inline(always)]
unsafe fn end<T: Dealloc>(object: *mut ffi::PyObject, was_tracked: bool) {
    // SAFETY: called once by CPython for an instance without references. If the finalizer makes a new reference, this
    // call ends, and CPython makes another one when the object dies again. The collector's header is there if the
    // class says so.
    unsafe {
        if T::FINALIZER && !T::is_finished(&*fields_of(object)) {
            if was_tracked {
                // An object that the finalizer revives is as it was.
                ffi::PyObject_GC_Track(object.cast());
            }
            if ffi::PyObject_CallFinalizerFromDealloc(object) < 0 {
                return;
            }
        }
        if T::COLLECTED {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        if T::weaklist(&*fields_of(object)).is_some_and(|list| !list.is_empty()) {
            ffi::PyObject_ClearWeakRefs(object);
        }
        T::dealloc(Dead::new(object));
    }
}
