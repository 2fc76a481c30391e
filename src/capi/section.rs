//! Critical sections: what guards the fields of native objects on a free-threaded build of CPython.
//!
//! Each native object is guarded by the lock of one Python object, which [`Native::guard`](super::native::Native::guard)
//! names: the loop to which it belongs, or itself. Every function that CPython calls with a native object holds that lock
//! in a critical section, so the fields are used by one thread at a time.
//!
//! **The rule is that of the GIL.** A call into Python, and any function of the C API that may wait, can suspend the
//! section. So code that is right with the GIL, because it holds no borrow across a call into Python, is right with a
//! section. Sections cannot deadlock: a thread that waits for anything in the interpreter has suspended all of its own.
//!
//! - [`hold`] runs a closure in a section. [`enter`] is for functions with many exits, such as the methods of pyo3's
//!   classes; the section ends when the value is dropped.
//! - [`release`] ends the innermost sections for the time of a call of Python code, and begins them again. Without that,
//!   other threads would wait for a loop until its callbacks end. Every call in [`call`](super::call) does so.
//! - A dropped reference is such a call too, even if others are left: the interpreter may have to wait for a lock before
//!   it can tell the thread that has made the object. So what is replaced is dropped after its place has its new value,
//!   and no borrow is held meanwhile.
//! - Only the innermost section of a thread is certain to be active. So code in the section of one object does not use
//!   the fields of another object that has another lock, before it has begun a section of that.
//!
//! With a GIL there is nothing to lock, and all of this compiles to nothing. Builds with debug assertions keep track of
//! the sections all the same, so that [`is_held`] checks on every interpreter what only a free-threaded one needs.

use pyo3::ffi;
use pyo3::prelude::*;

use super::object::{Borrowed, Ref, Slot};

/// Is this a build for an interpreter that may run without a GIL? Then several threads run Python code at once.
pub(crate) const FREE_THREADED: bool = cfg!(Py_GIL_DISABLED);

/// Is code that only a free-threaded build needs compiled in? Where it is right with a GIL too, and only slower, builds
/// with debug assertions run it, so that the tests do.
pub(crate) const AS_FREE_THREADED: bool = FREE_THREADED || cfg!(debug_assertions);

/// Are objects and memory reused, as [`recycle`](super::recycle) does? Where they are not, its statics are never touched.
pub(crate) const REUSES: bool = !FREE_THREADED;

/// Begins a critical section of an object, for a method of a pyo3 class.
#[inline(always)]
pub(crate) fn enter_bound<T>(object: &Bound<'_, T>) -> Held {
    // SAFETY: a live object, on an attached thread.
    let object = unsafe { Borrowed::from_ptr(object.as_ptr()) };
    enter(&object)
}

impl Ref {
    /// Runs `body` in a critical section of this object.
    #[inline(always)]
    pub(crate) fn hold<R>(&self, body: impl FnOnce() -> R) -> R {
        // SAFETY: a `Ref` exists only on an attached thread, and this one keeps the object alive.
        unsafe { hold(self.as_ptr(), body) }
    }

    /// Is the instance's dict, which the interpreter keeps in this slot of the object, missing or empty?
    #[inline(always)]
    pub(crate) fn has_no_items(&self, dict: &Slot) -> bool {
        if !FREE_THREADED {
            // SAFETY: the slot has a dict, or is empty.
            return dict.is_empty() || unsafe { ffi::PyDict_Size(dict.as_ptr()) } == 0;
        }
        // The interpreter replaces the dict in a section of the object itself.
        let dict = self.hold(|| dict.get());
        // SAFETY: a live dict.
        dict.is_none_or(|dict| unsafe { ffi::PyDict_Size(dict.as_ptr()) } == 0)
    }
}

cfg_select! {
    Py_GIL_DISABLED => {
        use std::cell::{Cell, UnsafeCell};
        use std::ptr::{from_ref, null, null_mut};


        /// CPython's `PyCriticalSection`. [`self_test`] checks that this is its layout.
        #[repr(C)]
        #[derive(Debug)]
        struct Raw {
            previous: usize,
            mutex: *mut ffi::PyMutex,
        }

        unsafe extern "C" {
            fn PyCriticalSection_Begin(section: *mut Raw, object: *mut ffi::PyObject);
            fn PyCriticalSection_BeginMutex(section: *mut Raw, mutex: *mut ffi::PyMutex);
            fn PyCriticalSection_End(section: *mut Raw);
        }

        thread_local! {
            /// The innermost section of ours, or null: there is none, or Python code runs inside of it.
            static INNERMOST: Cell<*const Section> = const { Cell::new(null()) };
        }

        /// A critical section. The interpreter has a pointer to it from `begin` to `end`, so it does not move meanwhile.
        #[derive(Debug)]
        struct Section {
            raw: UnsafeCell<Raw>,
            object: *mut ffi::PyObject,
            outer: Cell<*const Section>,
        }

        impl Section {
            fn new(object: *mut ffi::PyObject) -> Section {
                Section {
                    raw: UnsafeCell::new(Raw { previous: 0, mutex: null_mut() }),
                    object,
                    outer: Cell::new(null()),
                }
            }

            /// # Safety
            /// This thread is attached, the object lives until `end`, the section does not move, and sections end in the
            /// reverse order.
            #[inline(always)]
            unsafe fn begin(&self) {
                // SAFETY: the caller's contract.
                unsafe { PyCriticalSection_Begin(self.raw.get(), self.object) };
                // A section that is nested in another one of the same object locks nothing.
                let nested = !self.locks();
                self.outer.set(if nested { INNERMOST.get() } else { INNERMOST.replace(self) });
            }

            fn locks(&self) -> bool {
                // SAFETY: only this thread writes to the section.
                unsafe { !(*self.raw.get()).mutex.is_null() }
            }

            /// # Safety
            /// After `begin`, on the same thread.
            #[inline(always)]
            unsafe fn end(&self) {
                if self.locks() {
                    INNERMOST.set(self.outer.get());
                    // SAFETY: the caller's contract.
                    unsafe { PyCriticalSection_End(self.raw.get()) };
                }
            }

            /// Is this the innermost of all sections of this thread, those of the interpreter included?
            fn is_innermost(&self) -> bool {
                let mut mutex = ffi::PyMutex::new();
                let mut probe = Raw { previous: 0, mutex: null_mut() };
                // SAFETY: a lock that nobody else knows. The probe refers to the section in which it begins.
                unsafe {
                    PyCriticalSection_BeginMutex(&mut probe, &mut mutex);
                    PyCriticalSection_End(&mut probe);
                }
                probe.previous == self.raw.get() as usize
            }
        }

        struct End<'a>(&'a Section);

        impl Drop for End<'_> {
            #[inline(always)]
            fn drop(&mut self) {
                // SAFETY: made after `begin`, on this thread.
                unsafe { self.0.end() };
            }
        }

        /// Runs `body` in a critical section of `object`.
        ///
        /// # Safety
        /// This thread is attached, and the object lives until `body` has returned.
        #[inline(always)]
        pub(crate) unsafe fn hold<R>(object: *mut ffi::PyObject, body: impl FnOnce() -> R) -> R {
            let section = Section::new(object);
            // SAFETY: the caller's contract; the section stays where it is until `end` is dropped.
            unsafe { section.begin() };
            let _end = End(&section);
            body()
        }

        /// Runs `body`, to which alone the object belongs: it has no references, or the world is stopped.
        #[inline(always)]
        pub(crate) fn alone<R>(_object: *mut ffi::PyObject, body: impl FnOnce() -> R) -> R {
            body()
        }

        /// Runs `body`, which deallocates `object`, in a section of its guard.
        ///
        /// # Safety
        /// This thread is attached, `object` has no references, and `guard` lives as long as its fields.
        #[inline(always)]
        pub(crate) unsafe fn hold_last<R>(
            object: *mut ffi::PyObject,
            guard: *mut ffi::PyObject,
            body: impl FnOnce() -> R,
        ) -> R {
            if object == guard {
                return body();
            }
            // SAFETY: the caller's contract. The fields may have the last reference to the guard, so this is another one.
            unsafe {
                let guard = Ref::from_borrowed(guard);
                hold(guard.as_ptr(), body)
            }
        }

        /// A critical section that ends when this is dropped.
        #[derive(Debug)]
        pub(crate) struct Held {
            section: Box<Section>,
            _object: Ref,
        }

        impl Drop for Held {
            fn drop(&mut self) {
                // SAFETY: `enter` has begun it, on this thread: a `Ref` stays on its thread. The box has not moved it.
                unsafe { self.section.end() };
            }
        }

        /// Begins a critical section of `object`.
        pub(crate) fn enter(object: &Ref) -> Held {
            let section = Box::new(Section::new(object.as_ptr()));
            // SAFETY: a `Ref` exists only on an attached thread; the value keeps the object alive.
            unsafe { section.begin() };
            Held { section, _object: object.clone_ref() }
        }

        /// Runs `body`, which runs Python code, outside of the innermost sections of this thread, up to the first that
        /// is not ours.
        ///
        /// If only one of two nested sections ended, a method that Python code calls could not begin the other one again:
        /// the interpreter yields the processor forty times before it suspends the lock that this thread holds itself.
        #[inline(always)]
        pub(crate) fn release<R>(body: impl FnOnce() -> R) -> R {
            // SAFETY: null, or a section that has begun in a caller of this function and has not ended.
            match unsafe { INNERMOST.get().as_ref() } {
                // A function of the interpreter, which is in a section of its own, may have called us.
                Some(section) if section.is_innermost() => leave(section, body),
                _ => body(),
            }
        }

        /// Ends the innermost section of this thread for the time of `body`.
        #[inline(always)]
        fn leave<R>(section: &Section, body: impl FnOnce() -> R) -> R {
            struct Again<'a>(&'a Section);

            impl Drop for Again<'_> {
                fn drop(&mut self) {
                    // SAFETY: the section was ended below, and who has begun it keeps the object alive.
                    unsafe { PyCriticalSection_Begin(self.0.raw.get(), self.0.object) };
                    INNERMOST.set(self.0);
                }
            }

            INNERMOST.set(null());
            // SAFETY: the innermost section of this thread.
            unsafe { PyCriticalSection_End(section.raw.get()) };
            let _again = Again(section);
            // SAFETY: as in `release`: the outer section ends after this one.
            match unsafe { section.outer.get().as_ref() } {
                Some(outer) if outer.is_innermost() => leave_outer(outer, body),
                _ => body(),
            }
        }

        #[inline(never)]
        fn leave_outer<R>(section: &Section, body: impl FnOnce() -> R) -> R {
            leave(section, body)
        }

        /// Is the lock of `object` held? For debug assertions.
        pub(crate) fn is_held(object: *mut ffi::PyObject) -> bool {
            // SAFETY: a live object; the function reads its lock.
            unsafe { ffi::PyMutex_IsLocked(&raw mut (*object).ob_mutex) != 0 }
        }

        /// Checks the layout of the interpreter's sections, by which [`release`] finds the innermost one.
        pub(crate) fn self_test(object: &Ref) -> bool {
            let (outer, inner) = (Section::new(object.as_ptr()), Section::new(object.as_ptr()));
            // SAFETY: a live object, on an attached thread. The sections end in the reverse order.
            unsafe {
                outer.begin();
                let mut found = is_held(object.as_ptr()) && outer.locks() && outer.is_innermost();
                inner.begin();
                found &= !inner.locks() && outer.is_innermost() && from_ref(&outer) == INNERMOST.get();
                inner.end();
                release(|| found &= !outer.is_innermost() && INNERMOST.get().is_null());
                found &= outer.is_innermost();
                outer.end();
                found && INNERMOST.get().is_null()
            }
        }
    }
    debug_assertions => {
        use std::cell::Cell;
        use std::ptr::null_mut;


        thread_local! {
            /// The object of the innermost section, or null.
            static INNERMOST: Cell<*mut ffi::PyObject> = const { Cell::new(null_mut()) };
        }

        /// Ends a section, or the time without one, when it is dropped.
        #[derive(Debug)]
        pub(crate) struct Held(*mut ffi::PyObject);

        impl Drop for Held {
            fn drop(&mut self) {
                INNERMOST.set(self.0);
            }
        }

        pub(crate) unsafe fn hold<R>(object: *mut ffi::PyObject, body: impl FnOnce() -> R) -> R {
            alone(object, body)
        }

        pub(crate) fn alone<R>(object: *mut ffi::PyObject, body: impl FnOnce() -> R) -> R {
            let _held = Held(INNERMOST.replace(object));
            body()
        }

        pub(crate) unsafe fn hold_last<R>(
            _object: *mut ffi::PyObject,
            guard: *mut ffi::PyObject,
            body: impl FnOnce() -> R,
        ) -> R {
            alone(guard, body)
        }

        pub(crate) fn enter(object: &Ref) -> Held {
            Held(INNERMOST.replace(object.as_ptr()))
        }

        pub(crate) fn release<R>(body: impl FnOnce() -> R) -> R {
            alone(null_mut(), body)
        }

        pub(crate) fn is_held(object: *mut ffi::PyObject) -> bool {
            INNERMOST.get() == object
        }

        pub(crate) fn self_test(_object: &Ref) -> bool {
            true
        }
    }
    _ => {

        #[derive(Debug)]
        pub(crate) struct Held;

        #[inline(always)]
        pub(crate) unsafe fn hold<R>(_object: *mut ffi::PyObject, body: impl FnOnce() -> R) -> R {
            body()
        }

        #[inline(always)]
        pub(crate) fn alone<R>(_object: *mut ffi::PyObject, body: impl FnOnce() -> R) -> R {
            body()
        }

        #[inline(always)]
        pub(crate) unsafe fn hold_last<R>(
            _object: *mut ffi::PyObject,
            _guard: *mut ffi::PyObject,
            body: impl FnOnce() -> R,
        ) -> R {
            body()
        }

        #[inline(always)]
        pub(crate) fn enter(_object: &Ref) -> Held {
            Held
        }

        #[inline(always)]
        pub(crate) fn release<R>(body: impl FnOnce() -> R) -> R {
            body()
        }

        #[inline(always)]
        pub(crate) fn is_held(_object: *mut ffi::PyObject) -> bool {
            true
        }

        pub(crate) fn self_test(_object: &Ref) -> bool {
            true
        }
    }
}
