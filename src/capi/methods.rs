//! The calling conventions of C, written once: from an ordinary Rust function to what a method table, an attribute
//! table or a type slot holds.
//!
//! A table names Rust functions. What CPython calls is an adapter that is made for each of them at compile time: it
//! turns the receiver into a [`This`], calls the function, which the optimiser inlines into it, and turns the result
//! into an object or null (see [`returned`](super::returned)). A panic becomes a Python exception. A hand-written
//! `extern "C"` function has no fewer instructions.
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
//! Why this is sound: the tables are typed by the struct whose class they are for. The descriptors that CPython makes
//! of them check the type of the receiver, and [`Native`] says that each instance has valid fields.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

use pyo3::basic::CompareOp;
use pyo3::ffi;

use super::arguments::{Arguments, reword};
use super::call::guard;
use super::collector::{self, Traverse};
use super::error::Raised;
use super::function::Definition;
use super::native::{self, Dealloc, Native, This, in_section};
use super::object::{Borrowed, Ref};
use super::returned::{Hash, Returned, Status};

/// The only value of the type of a function or of a closure that captures nothing. The type has no size, and it alone
/// says what is called.
#[inline(always)]
const fn callable<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "a function or a closure that captures nothing") };
    // SAFETY: nothing is read of a type without size. It is `Copy`, so the value may be copied any number of times,
    // and the constructor of the table's row was given it once.
    unsafe { std::ptr::read(std::ptr::dangling::<F>()) }
}

// -- adapters ----------------------------------------------------------------------------------------------------

/// Writes the functions that CPython calls. A row has the arguments that C passes after the receiver, the trait that
/// turns the result into that of C, and the arguments that the Rust function gets after its own receiver.
macro_rules! adapters {
    ($($name:ident($($passed:ident: $c:ty),*) -> $result:ty = $trait:ident::$into:ident($($given:ty: $made:expr),*);)*) => {$(
        unsafe extern "C" fn $name<T, F, R>(object: *mut ffi::PyObject $(, $passed: $c)*) -> $result
        where
            T: Native,
            F: for<'a> Fn(This<'a, T> $(, $given)*) -> R + Copy,
            R: $trait,
        {
            // SAFETY: the receiver is an instance of the class (see the module's head). The caller holds it, and what
            // it passes, for the time of the call.
            guard(|| unsafe { in_section(object, |this| callable::<F>()(this $(, $made)*).$into()) })
        }
    )*};
}

type Object = *mut ffi::PyObject;

adapters! {
    no_args(_nothing: Object) -> Object = Returned::into_returned();
    one_arg(argument: Object) -> Object = Returned::into_returned(Borrowed<'a>: Borrowed::from_ptr(argument));
    get(_closure: *mut c_void) -> Object = Returned::into_returned();
    set(value: Object, _closure: *mut c_void) -> c_int =
        Status::into_status(Option<Borrowed<'a>>: Borrowed::from_nullable(value));
    unary() -> Object = Returned::into_returned();
    hash() -> ffi::Py_hash_t = Hash::into_hash();
    compare(other: Object, operation: c_int) -> Object =
        Returned::into_returned(Borrowed<'a>: Borrowed::from_ptr(other), CompareOp: comparison(operation));
    call(arguments: Object, keywords: Object) -> Object = Returned::into_returned(
        Borrowed<'a>: Borrowed::from_ptr(arguments), Option<Borrowed<'a>>: Borrowed::from_nullable(keywords));
    init(arguments: Object, keywords: Object) -> c_int = Status::into_status(
        Borrowed<'a>: Borrowed::from_ptr(arguments), Option<Borrowed<'a>>: Borrowed::from_nullable(keywords));
}

unsafe extern "C" fn fast<T, F, R>(
    object: Object,
    values: *const Object,
    count: ffi::Py_ssize_t,
    names: Object,
) -> Object
where
    T: Native,
    F: for<'a> Fn(This<'a, T>, Arguments<'a>) -> R + Copy,
    R: Returned,
{
    // SAFETY: as in `adapters`.
    unsafe {
        answer::<T>(object, values, count, names, |arguments| {
            in_section(object, |this| callable::<F>()(this, arguments).into_object())
        })
    }
}

/// As `fast`, outside of a section.
unsafe extern "C" fn fast_outside<T, F, R>(
    object: Object,
    values: *const Object,
    count: ffi::Py_ssize_t,
    names: Object,
) -> Object
where
    T: Native,
    F: for<'a> Fn(This<'a, T>, Arguments<'a>) -> R + Copy,
    R: Returned,
{
    // SAFETY: as in `adapters`.
    unsafe {
        answer::<T>(object, values, count, names, |arguments| {
            callable::<F>()(This::outside(object), arguments).into_object()
        })
    }
}

/// Calls a method with any arguments. If it refuses them, the error gets the interpreter's words.
///
/// # Safety
/// The arguments of a running call.
#[inline(always)]
unsafe fn answer<T: Native>(
    object: Object,
    values: *const Object,
    count: ffi::Py_ssize_t,
    names: Object,
    call: impl FnOnce(Arguments<'_>) -> Result<Ref, Raised>,
) -> Object {
    guard(|| {
        // SAFETY: the caller's contract. The class and the receiver live for the time of the call.
        unsafe {
            call(Arguments::new(values, count, names)).map_or_else(
                |Raised| {
                    let class = Borrowed::from_ptr(T::class().as_ptr().cast());
                    // Made anew, so that those of the call can stay in registers.
                    let arguments = Arguments::new(values, count, names);
                    let _ = reword(class, Borrowed::from_ptr(object), arguments);
                    null_mut()
                },
                Ref::into_ptr,
            )
        }
    })
}

#[inline(always)]
fn comparison(operation: c_int) -> CompareOp {
    // CPython passes no other number.
    CompareOp::from_raw(operation).unwrap_or(CompareOp::Ge)
}

// -- methods -----------------------------------------------------------------------------------------------------

/// One row of a method table. A text for `help()` that begins with the call, `name(parameters)` and an empty line, tells
/// `inspect` and the stub checker the signature.
pub(crate) struct Method<T> {
    definition: Definition,
    kind: PhantomData<fn(&T)>,
}

/// Writes the constructors of a method: what the Rust function is given, the adapter, and the flags.
macro_rules! kinds_of_method {
    ($($(#[$doc:meta])* $name:ident($($given:ty),*) = $function:ident: $adapter:ident, $flags:expr;)*) => {
        impl<T: Native> Method<T> {
            $($(#[$doc])*
            pub(crate) const fn $name<F, R>(name: &'static CStr, _: F, doc: &'static CStr) -> Method<T>
            where
                F: for<'a> Fn(This<'a, T> $(, $given)*) -> R + Copy + 'static,
                R: Returned,
            {
                let function = ffi::PyMethodDefPointer { $function: $adapter::<T, F, R> };
                let definition = Definition { name, function, flags: $flags, doc, is_coroutine: false };
                Method { definition, kind: PhantomData }
            })*
        }
    };
}

kinds_of_method! {
    /// A method without arguments.
    no_args() = PyCFunction: no_args, ffi::METH_NOARGS;
    /// A method without arguments that Python code calls, while the interpreter uses the type's slot of the same name.
    beside_slot() = PyCFunction: no_args, ffi::METH_NOARGS | ffi::METH_COEXIST;
    /// A method with one positional argument.
    one_arg(Borrowed<'a>) = PyCFunction: one_arg, ffi::METH_O;
    /// A method with any arguments.
    fast(Arguments<'a>) = PyCFunctionFastWithKeywords: fast, ffi::METH_FASTCALL | ffi::METH_KEYWORDS;
}

kinds_of_method! {
    /// A method with any arguments that begins a section itself, before it uses the fields.
    outside(Arguments<'a>) = PyCFunctionFastWithKeywords: fast_outside, ffi::METH_FASTCALL | ffi::METH_KEYWORDS;
}

impl<T> Method<T> {
    /// The method, if it returns a coroutine: then it is a coroutine function for Python code.
    pub(crate) const fn coroutine(mut self) -> Method<T> {
        self.definition.is_coroutine = true;
        self
    }

    pub(super) fn definition(&self) -> Definition {
        self.definition
    }

    /// The address of the C function behind the method. No other method of the class has it.
    pub(crate) fn address(&self) -> usize {
        self.definition.address()
    }
}

// -- attributes --------------------------------------------------------------------------------------------------

/// One row of an attribute table.
#[derive(Debug)]
pub(crate) struct Attribute<T> {
    pub(super) name: &'static CStr,
    pub(super) get: ffi::getter,
    pub(super) set: Option<ffi::setter>,
    /// The text for `help()`.
    pub(super) doc: Option<&'static CStr>,
    kind: PhantomData<fn(&T)>,
}

impl<T: Native> Attribute<T> {
    /// An attribute that cannot be set.
    pub(crate) const fn read_only<G, R>(name: &'static CStr, _: G) -> Attribute<T>
    where
        G: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
    {
        Attribute { name, get: get::<T, G, R>, set: None, doc: None, kind: PhantomData }
    }

    /// An attribute that can be set. The setter is given nothing when the attribute is deleted.
    pub(crate) const fn new<G, R, S, E>(name: &'static CStr, _: G, _: S) -> Attribute<T>
    where
        G: for<'a> Fn(This<'a, T>) -> R + Copy + 'static,
        R: Returned,
        S: for<'a> Fn(This<'a, T>, Option<Borrowed<'a>>) -> E + Copy + 'static,
        E: Status,
    {
        Attribute { name, get: get::<T, G, R>, set: Some(set::<T, S, E>), doc: None, kind: PhantomData }
    }

    /// `__dict__`, of a class that has one.
    pub(crate) const fn dict() -> Attribute<T> {
        let (get, set) = (ffi::PyObject_GenericGetDict, ffi::PyObject_GenericSetDict);
        Attribute { name: c"__dict__", get, set: Some(set), doc: None, kind: PhantomData }
    }

    /// The attribute with a text for `help()`.
    pub(crate) const fn doc(self, text: &'static CStr) -> Attribute<T> {
        Attribute { doc: Some(text), ..self }
    }
}

// -- slots -------------------------------------------------------------------------------------------------------

/// One of the functions that a type has beside its methods (`PyType_Slot`).
#[derive(Debug)]
pub(crate) struct TypeSlot<T> {
    pub(super) number: c_int,
    pub(super) function: *mut c_void,
    kind: PhantomData<fn(&T)>,
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

    /// `tp_finalize`, which does what asyncio's `__del__` does. It runs with no error set, and what it leaves set is
    /// printed. Needs [`Dealloc::FINALIZER`].
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

    /// `__iter__`, `__aiter__` or `__await__` that returns the object itself.
    pub(crate) fn itself(slot: SelfSlot) -> TypeSlot<T> {
        let function: ffi::getiterfunc = ffi::PyObject_SelfIter;
        TypeSlot { number: slot as c_int, function: function as *mut c_void, kind: PhantomData }
    }
}

/// Writes the constructors of the slots that are a Rust function behind an adapter.
macro_rules! kinds_of_slot {
    ($($(#[$doc:meta])* $name:ident($($given:ty),*) -> $trait:ident = $number:ident: $kind:ident, $adapter:ident;)*) => {
        impl<T: Native> TypeSlot<T> {
            $($(#[$doc])*
            pub(crate) fn $name<F, R>(_: F) -> TypeSlot<T>
            where
                F: for<'a> Fn(This<'a, T> $(, $given)*) -> R + Copy + 'static,
                R: $trait,
            {
                let function: ffi::$kind = $adapter::<T, F, R>;
                TypeSlot { number: ffi::$number, function: function as *mut c_void, kind: PhantomData }
            })*
        }
    };
}

kinds_of_slot! {
    /// `__repr__`.
    repr() -> Returned = Py_tp_repr: reprfunc, unary;
    /// `__next__`. Returning `Err` with no error set ends the iteration.
    next() -> Returned = Py_tp_iternext: iternextfunc, unary;
    /// `__anext__`.
    anext() -> Returned = Py_am_anext: unaryfunc, unary;
    /// `__hash__`.
    hash() -> Hash = Py_tp_hash: hashfunc, hash;
    /// `__eq__`, `__lt__` and the rest.
    compare(Borrowed<'a>, CompareOp) -> Returned = Py_tp_richcompare: richcmpfunc, compare;
    /// `__call__`, with a tuple and perhaps a dict.
    call(Borrowed<'a>, Option<Borrowed<'a>>) -> Returned = Py_tp_call: ternaryfunc, call;
    /// `__init__`, with a tuple and perhaps a dict.
    init(Borrowed<'a>, Option<Borrowed<'a>>) -> Status = Py_tp_init: initproc, init;
}

/// The slots in which an object can return itself.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum SelfSlot {
    Iter = ffi::Py_tp_iter,
    AsyncIter = ffi::Py_am_aiter,
    Await = ffi::Py_am_await,
}

unsafe extern "C" fn finalize<T, F, E>(object: *mut ffi::PyObject)
where
    T: Native,
    F: for<'a> Fn(This<'a, T>) -> E + Copy,
    E: Status,
{
    super::error::undisturbed(|| {
        // SAFETY: as in `adapters`; CPython keeps the object alive for the time of its finalizer.
        let done = guard(|| unsafe { in_section(object, |this| callable::<F>()(this).into_status()) });
        if done < 0 {
            // SAFETY: a live object, as above: CPython keeps it alive for the time of its finalizer.
            unsafe { Borrowed::from_ptr(object) }.write_unraisable();
        }
    });
}
