//! The calling conventions of C, written once: from an ordinary Rust function to what a method table, an attribute table
//! or a type slot holds.
//!
//! A table names Rust functions. What CPython calls is an adapter that is made for each of them at compile time: it
//! turns the receiver into a [`This`], calls the function, which the optimiser inlines into it, and turns the result into
//! an object or null (see [`returned`](super::returned)). A panic becomes a Python exception. A hand-written `extern "C"`
//! function has no fewer instructions.
//!
//! ```text
//! fn write(this: This<'_, Stream>, arguments: Arguments<'_>) -> Result<(), Raised> {
//!     send::write(this, arguments.one("write", "data")?)
//! }
//!
//! const METHODS: &[Method<Stream>] = &[
//!     Method::fast(c"write", write, c"write(data)\n\nSend bytes."),
//!     Method::no_args(c"is_closing", |this| this.closing.get(), c"True if closing or closed."),
//! ];
//! const ATTRIBUTES: &[Attribute<Stream>] = &[
//!     Attribute::read_only(c"_server", |this| this.server.get()),
//!     Attribute::dict(),
//! ];
//! let class = ClassSpec::<Stream>::new(c"wakeloop._core.StreamTransport")
//!     .methods(METHODS)
//!     .attributes(ATTRIBUTES)
//!     .slots(&[TypeSlot::dealloc(), TypeSlot::repr(repr)])
//!     .slots(&TypeSlot::collected())
//!     .build(py)?;
//! ```
//!
//! Why this is sound: the tables are typed by the struct whose class they are for. The descriptors that CPython makes of
//! them check the type of the receiver, and [`Native`] says that each instance has valid fields.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;

use pyo3::ffi;

use super::arguments::Arguments;
use super::call::guard;
use super::collector::{self, Traverse};
use super::error::Raised;
use super::native::{self, Dealloc, Native, This};
use super::object::Borrowed;
use super::returned::{Returned, Status};

/// The value of a function's or a closure's own type, which has no size: what is called is known from the type.
#[inline(always)]
const fn the<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "a function or a closure that captures nothing") };
    // SAFETY: nothing is read of a type without size. It is `Copy`, so it has this value as often as one likes, and the
    // constructor of the table's row was given it once.
    unsafe { std::ptr::read(std::ptr::dangling::<F>()) }
}

// -- methods -----------------------------------------------------------------------------------------------------

/// One row of a method table. A text for `help()` that begins with the call, `name(parameters)` and an empty line, tells
/// `inspect` and the stub checker the signature.
pub(crate) struct Method<T> {
    name: &'static CStr,
    function: ffi::PyMethodDefPointer,
    flags: c_int,
    doc: &'static CStr,
    kind: PhantomData<fn(&T)>,
}

impl<T: Native> Method<T> {
    /// A method without arguments.
    pub(crate) const fn no_args<F, R>(name: &'static CStr, _: F, doc: &'static CStr) -> Method<T>
    where
        F: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
    {
        let function = ffi::PyMethodDefPointer { PyCFunction: no_args::<T, F, R> };
        Method { name, function, flags: ffi::METH_NOARGS, doc, kind: PhantomData }
    }

    /// A method without arguments that Python code calls, while the interpreter uses the type's slot of the same name.
    pub(crate) const fn beside_slot<F, R>(name: &'static CStr, function: F, doc: &'static CStr) -> Method<T>
    where
        F: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
    {
        Method { flags: ffi::METH_NOARGS | ffi::METH_COEXIST, ..Method::no_args(name, function, doc) }
    }

    /// A method with one positional argument.
    pub(crate) const fn one_arg<F, R>(name: &'static CStr, _: F, doc: &'static CStr) -> Method<T>
    where
        F: for<'a> Fn(This<'a, T>, Borrowed<'a>) -> R + Copy + 'static,
        R: Returned,
    {
        let function = ffi::PyMethodDefPointer { PyCFunction: one_arg::<T, F, R> };
        Method { name, function, flags: ffi::METH_O, doc, kind: PhantomData }
    }

    /// A method with any arguments.
    pub(crate) const fn fast<F, R>(name: &'static CStr, _: F, doc: &'static CStr) -> Method<T>
    where
        F: for<'a> Fn(This<'a, T>, Arguments<'a>) -> R + Copy + 'static,
        R: Returned,
    {
        let function = ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: fast::<T, F, R> };
        Method { name, function, flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS, doc, kind: PhantomData }
    }

    pub(super) fn definition(&self) -> ffi::PyMethodDef {
        ffi::PyMethodDef {
            ml_name: self.name.as_ptr(),
            ml_meth: self.function,
            ml_flags: self.flags,
            ml_doc: doc_of(self.name, self.doc),
        }
    }

    pub(super) fn name(&self) -> &'static CStr {
        self.name
    }

    /// The address of the function that CPython calls. No other method of the class has it.
    pub(crate) fn address(&self) -> usize {
        // SAFETY: every member of the union is a pointer to a function.
        unsafe { self.function.PyCFunction as usize }
    }
}

impl<T> std::fmt::Debug for Method<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Method").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The text in the form from which CPython takes a signature: `name($self, parameters)`, a line `--`. Leaked with its
/// table.
fn doc_of(name: &CStr, doc: &'static CStr) -> *const c_char {
    let signature = || -> Option<CString> {
        let (name, doc) = (name.to_str().ok()?, doc.to_str().ok()?);
        let (parameters, text) = doc.strip_prefix(name)?.strip_prefix('(')?.split_once(")\n\n")?;
        let comma = if parameters.is_empty() { "" } else { ", " };
        CString::new(format!("{name}($self{comma}{parameters})\n--\n\n{text}")).ok()
    };
    match signature() {
        Some(whole) => CString::into_raw(whole),
        None => doc.as_ptr(),
    }
}

unsafe extern "C" fn no_args<T, F, R>(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject
where
    T: Native,
    F: for<'a> Fn(This<'a, T>) -> R + Copy,
    R: Returned,
{
    // SAFETY: the receiver is an instance of the class (see the module's head), and the caller holds it.
    guard(|| the::<F>()(unsafe { This::from_ptr(object) }).into_returned())
}

unsafe extern "C" fn one_arg<T, F, R>(
    object: *mut ffi::PyObject,
    argument: *mut ffi::PyObject,
) -> *mut ffi::PyObject
where
    T: Native,
    F: for<'a> Fn(This<'a, T>, Borrowed<'a>) -> R + Copy,
    R: Returned,
{
    // SAFETY: as in `no_args`, and the caller holds the argument.
    guard(|| unsafe { the::<F>()(This::from_ptr(object), Borrowed::from_ptr(argument)) }.into_returned())
}

unsafe extern "C" fn fast<T, F, R>(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject
where
    T: Native,
    F: for<'a> Fn(This<'a, T>, Arguments<'a>) -> R + Copy,
    R: Returned,
{
    guard(|| {
        // SAFETY: as in `no_args`, and the arguments are those of this call.
        unsafe { the::<F>()(This::from_ptr(object), Arguments::new(values, count, names)) }.into_returned()
    })
}

// -- attributes --------------------------------------------------------------------------------------------------

/// One row of an attribute table.
#[derive(Debug)]
pub(crate) struct Attribute<T> {
    pub(super) name: &'static CStr,
    pub(super) get: ffi::getter,
    pub(super) set: Option<ffi::setter>,
    kind: PhantomData<fn(&T)>,
}

impl<T: Native> Attribute<T> {
    /// An attribute that cannot be set.
    pub(crate) const fn read_only<G, R>(name: &'static CStr, _: G) -> Attribute<T>
    where
        G: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
    {
        Attribute { name, get: get::<T, G, R>, set: None, kind: PhantomData }
    }

    /// An attribute that can be set. The setter is given nothing when the attribute is deleted.
    pub(crate) const fn new<G, R, S, E>(name: &'static CStr, _: G, _: S) -> Attribute<T>
    where
        G: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
        S: for<'a> Fn(This<'a, T>, Option<Borrowed<'a>>) -> E + Copy + 'static,
        E: Status,
    {
        Attribute { name, get: get::<T, G, R>, set: Some(set::<T, S, E>), kind: PhantomData }
    }

    /// `__dict__`, of a class that has one.
    pub(crate) const fn dict() -> Attribute<T> {
        let (get, set) = (ffi::PyObject_GenericGetDict, ffi::PyObject_GenericSetDict);
        Attribute { name: c"__dict__", get, set: Some(set), kind: PhantomData }
    }
}

unsafe extern "C" fn get<T, G, R>(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject
where
    T: Native,
    G: for<'a> Fn(This<'a, T>) -> R + Copy,
    R: Returned,
{
    // SAFETY: as in `no_args`.
    guard(|| the::<G>()(unsafe { This::from_ptr(object) }).into_returned())
}

unsafe extern "C" fn set<T, S, E>(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int
where
    T: Native,
    S: for<'a> Fn(This<'a, T>, Option<Borrowed<'a>>) -> E + Copy,
    E: Status,
{
    // SAFETY: as in `no_args`; the value is null if the attribute is deleted.
    guard(|| unsafe { the::<S>()(This::from_ptr(object), Borrowed::from_nullable(value)) }.into_status())
}

// -- slots -------------------------------------------------------------------------------------------------------

/// One of the functions that a type has beside its methods (`PyType_Slot`).
#[derive(Debug)]
pub(crate) struct TypeSlot<T> {
    pub(super) number: c_int,
    pub(super) function: *mut c_void,
    kind: PhantomData<fn(&T)>,
}

/// A comparison, as `==` and `<`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
}

impl<T: Native> TypeSlot<T> {
    /// Any slot.
    ///
    /// # Safety
    /// The function has the signature that the slot's number asks for, and can be called on an instance of `T`'s class.
    pub(crate) const unsafe fn raw(number: c_int, function: *mut c_void) -> TypeSlot<T> {
        TypeSlot { number, function, kind: PhantomData }
    }

    /// `tp_dealloc`, which every class needs.
    pub(crate) fn dealloc() -> TypeSlot<T>
    where
        T: Dealloc,
    {
        let function: ffi::destructor = native::dealloc::<T>;
        TypeSlot { number: ffi::Py_tp_dealloc, function: function as *mut c_void, kind: PhantomData }
    }

    /// `tp_traverse` and `tp_clear`, which every class needs that has a collector's header.
    pub(crate) fn collected() -> [TypeSlot<T>; 2]
    where
        T: Traverse,
    {
        let (traverse, clear): (ffi::traverseproc, ffi::inquiry) =
            (collector::traverse::<T>, collector::clear::<T>);
        [
            TypeSlot { number: ffi::Py_tp_traverse, function: traverse as *mut c_void, kind: PhantomData },
            TypeSlot { number: ffi::Py_tp_clear, function: clear as *mut c_void, kind: PhantomData },
        ]
    }

    /// `tp_finalize`, asyncio's `__del__`. It runs with no error set, and what it leaves set is printed. Needs
    /// [`Dealloc::FINALIZER`].
    pub(crate) fn finalize<F, E>(_: F) -> TypeSlot<T>
    where
        T: Dealloc,
        F: for<'a> Fn(This<'a, T>) -> E + Copy + 'static,
        E: Status,
    {
        const { assert!(T::FINALIZER) };
        let function: ffi::destructor = finalize::<T, F, E>;
        TypeSlot { number: ffi::Py_tp_finalize, function: function as *mut c_void, kind: PhantomData }
    }

    /// `__repr__`.
    pub(crate) fn repr<F, R>(function: F) -> TypeSlot<T>
    where
        F: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
    {
        TypeSlot::unary(ffi::Py_tp_repr, function)
    }

    /// `__next__`. Returning `Err` with no error set ends the iteration.
    pub(crate) fn next<F, R>(function: F) -> TypeSlot<T>
    where
        F: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
    {
        TypeSlot::unary(ffi::Py_tp_iternext, function)
    }

    /// `__anext__`.
    pub(crate) fn anext<F, R>(function: F) -> TypeSlot<T>
    where
        F: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
    {
        TypeSlot::unary(ffi::Py_am_anext, function)
    }

    /// `__iter__`, `__aiter__` or `__await__` that gives the object itself.
    pub(crate) fn itself(slot: SelfSlot) -> TypeSlot<T> {
        TypeSlot::unary(slot as c_int, |this: This<'_, T>| this.object().to_owned())
    }

    fn unary<F, R>(number: c_int, _: F) -> TypeSlot<T>
    where
        F: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
    {
        let function: ffi::unaryfunc = unary::<T, F, R>;
        TypeSlot { number, function: function as *mut c_void, kind: PhantomData }
    }

    /// `__hash__`.
    pub(crate) fn hash<F>(_: F) -> TypeSlot<T>
    where
        F: for<'a> Fn(This<'a, T>) -> Result<isize, Raised> + Copy + 'static,
    {
        let function: ffi::hashfunc = hash::<T, F>;
        TypeSlot { number: ffi::Py_tp_hash, function: function as *mut c_void, kind: PhantomData }
    }

    /// `__eq__`, `__lt__` and the rest.
    pub(crate) fn compare<F, R>(_: F) -> TypeSlot<T>
    where
        F: for<'a> Fn(This<'a, T>, Borrowed<'a>, Comparison) -> R + Copy + 'static,
        R: Returned,
    {
        let function: ffi::richcmpfunc = compare::<T, F, R>;
        TypeSlot { number: ffi::Py_tp_richcompare, function: function as *mut c_void, kind: PhantomData }
    }

    /// `__call__`, with a tuple and perhaps a dict.
    pub(crate) fn call<F, R>(_: F) -> TypeSlot<T>
    where
        F: for<'a> Fn(This<'a, T>, Borrowed<'a>, Option<Borrowed<'a>>) -> R + Copy + 'static,
        R: Returned,
    {
        let function: ffi::ternaryfunc = call::<T, F, R>;
        TypeSlot { number: ffi::Py_tp_call, function: function as *mut c_void, kind: PhantomData }
    }

    /// `__init__`, with a tuple and perhaps a dict.
    pub(crate) fn init<F, E>(_: F) -> TypeSlot<T>
    where
        F: for<'a> Fn(This<'a, T>, Borrowed<'a>, Option<Borrowed<'a>>) -> E + Copy + 'static,
        E: Status,
    {
        let function: ffi::initproc = init::<T, F, E>;
        TypeSlot { number: ffi::Py_tp_init, function: function as *mut c_void, kind: PhantomData }
    }
}

/// The slots in which an object can return itself.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum SelfSlot {
    Iter = ffi::Py_tp_iter,
    AsyncIter = ffi::Py_am_aiter,
    Await = ffi::Py_am_await,
}

unsafe extern "C" fn unary<T, F, R>(object: *mut ffi::PyObject) -> *mut ffi::PyObject
where
    T: Native,
    F: for<'a> Fn(This<'a, T>) -> R + Copy,
    R: Returned,
{
    // SAFETY: as in `no_args`.
    guard(|| the::<F>()(unsafe { This::from_ptr(object) }).into_returned())
}

unsafe extern "C" fn finalize<T, F, E>(object: *mut ffi::PyObject)
where
    T: Native,
    F: for<'a> Fn(This<'a, T>) -> E + Copy,
    E: Status,
{
    super::error::undisturbed(|| {
        // SAFETY: as in `no_args`; CPython keeps the object alive for the time of its finalizer.
        let done = guard(|| the::<F>()(unsafe { This::from_ptr(object) }).into_status());
        if done < 0 {
            // SAFETY: as above.
            unsafe { Borrowed::from_ptr(object) }.write_unraisable();
        }
    });
}

unsafe extern "C" fn hash<T, F>(object: *mut ffi::PyObject) -> ffi::Py_hash_t
where
    T: Native,
    F: for<'a> Fn(This<'a, T>) -> Result<isize, Raised> + Copy,
{
    // SAFETY: as in `no_args`.
    guard(|| match the::<F>()(unsafe { This::from_ptr(object) }) {
        // -1 is the sign of an error.
        Ok(-1) => -2,
        Ok(hash) => hash,
        Err(Raised) => -1,
    })
}

unsafe extern "C" fn compare<T, F, R>(
    object: *mut ffi::PyObject,
    other: *mut ffi::PyObject,
    operation: c_int,
) -> *mut ffi::PyObject
where
    T: Native,
    F: for<'a> Fn(This<'a, T>, Borrowed<'a>, Comparison) -> R + Copy,
    R: Returned,
{
    let comparison = match operation {
        ffi::Py_LT => Comparison::Less,
        ffi::Py_LE => Comparison::LessOrEqual,
        ffi::Py_EQ => Comparison::Equal,
        ffi::Py_NE => Comparison::NotEqual,
        ffi::Py_GT => Comparison::Greater,
        _ => Comparison::GreaterOrEqual,
    };
    guard(|| {
        // SAFETY: as in `one_arg`.
        unsafe { the::<F>()(This::from_ptr(object), Borrowed::from_ptr(other), comparison) }.into_returned()
    })
}

unsafe extern "C" fn call<T, F, R>(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject
where
    T: Native,
    F: for<'a> Fn(This<'a, T>, Borrowed<'a>, Option<Borrowed<'a>>) -> R + Copy,
    R: Returned,
{
    // SAFETY: as in `one_arg`; the keywords are a dict or null.
    guard(|| unsafe {
        let (arguments, keywords) = (Borrowed::from_ptr(arguments), Borrowed::from_nullable(keywords));
        the::<F>()(This::from_ptr(object), arguments, keywords).into_returned()
    })
}

unsafe extern "C" fn init<T, F, E>(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> c_int
where
    T: Native,
    F: for<'a> Fn(This<'a, T>, Borrowed<'a>, Option<Borrowed<'a>>) -> E + Copy,
    E: Status,
{
    // SAFETY: as in `call`.
    guard(|| unsafe {
        let (arguments, keywords) = (Borrowed::from_ptr(arguments), Borrowed::from_nullable(keywords));
        the::<F>()(This::from_ptr(object), arguments, keywords).into_status()
    })
}
