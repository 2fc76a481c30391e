//! Lets a Python function answer for a function of a C module, wherever that was bound before.
//!
//! A built-in function has a pointer to its definition, and the definition one to the C function. A name that was imported
//! early, a default argument and an attribute of a class lead to the same definition. So [`redirect`] exchanges the C
//! function there. No class and no module changes, and nothing has to be searched.
//!
//! - The stand-in gets the object that the function is bound to (the module, or for a class method the class), and the
//!   arguments. If it returns `NotImplemented`, the C function is called.
//! - Only a function that is as its module has defined it is redirected: the code lies in the same file as the definition.
//!   So a slot's `original` is the module's own function, whatever other tools have done before.
//! - A tool that exchanges the C function after us is left alone, and may keep ours as the earlier one. Without a
//!   stand-in, ours calls the original.
//! - Definitions live as long as the process, and a slot is never used for another one.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::error::exception;

/// How many functions can be redirected.
const SLOTS: usize = 24;
/// A call with more arguments goes to the C function, which refuses it.
const MOST: usize = 6;

/// One redirected function.
struct Slot {
    definition: AtomicPtr<ffi::PyMethodDef>,
    original: AtomicPtr<c_void>,
    /// A reference that is kept for ever: another thread may be about to call it.
    stand_in: AtomicPtr<ffi::PyObject>,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        definition: AtomicPtr::new(null_mut()),
        original: AtomicPtr::new(null_mut()),
        stand_in: AtomicPtr::new(null_mut()),
    }
}; SLOTS];

/// The calling conventions of C functions, as far as they are known here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Convention {
    NoArguments,
    One,
    Tuple,
    Fast,
    FastKeywords,
}

const METHOD_FLAGS: c_int = ffi::METH_CLASS | ffi::METH_STATIC | ffi::METH_COEXIST;

impl Convention {
    fn of(flags: c_int) -> Option<Convention> {
        match flags & !METHOD_FLAGS {
            ffi::METH_NOARGS => Some(Convention::NoArguments),
            ffi::METH_O => Some(Convention::One),
            ffi::METH_VARARGS => Some(Convention::Tuple),
            ffi::METH_FASTCALL => Some(Convention::Fast),
            flags if flags == ffi::METH_FASTCALL | ffi::METH_KEYWORDS => Some(Convention::FastKeywords),
            _ => None,
        }
    }
}

type Object = *mut ffi::PyObject;
type Arguments = *const Object;
type Plain = unsafe extern "C" fn(Object, Object) -> Object;
type Fast = unsafe extern "C" fn(Object, Arguments, ffi::Py_ssize_t) -> Object;
type FastKeywords = unsafe extern "C" fn(Object, Arguments, ffi::Py_ssize_t, Object) -> Object;

/// The functions that stand in the definition of a redirected function, one for each convention.
struct Entries {
    no_arguments: Plain,
    one: Plain,
    tuple: Plain,
    fast: Fast,
    fast_keywords: FastKeywords,
}

impl Entries {
    const fn of<const SLOT: usize>() -> Entries {
        Entries {
            no_arguments: no_arguments::<SLOT>,
            one: one::<SLOT>,
            tuple: tuple::<SLOT>,
            fast: fast::<SLOT>,
            fast_keywords: fast_keywords::<SLOT>,
        }
    }

    fn get(&self, convention: Convention) -> *mut c_void {
        match convention {
            Convention::NoArguments => self.no_arguments as *mut c_void,
            Convention::One => self.one as *mut c_void,
            Convention::Tuple => self.tuple as *mut c_void,
            Convention::Fast => self.fast as *mut c_void,
            Convention::FastKeywords => self.fast_keywords as *mut c_void,
        }
    }
}

macro_rules! entries {
    ($($slot:literal)*) => { [$(Entries::of::<$slot>()),*] };
}

static ENTRIES: [Entries; SLOTS] = entries!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23);

/// Asks the stand-in. `None` means that the C function is to be called.
///
/// # Safety
/// As for a C function that gets these arguments: `arguments` points to `count` live objects, and to one for each of
/// `names`, a tuple or null.
unsafe fn answer(
    slot: usize,
    this: Object,
    arguments: Arguments,
    count: usize,
    names: Object,
) -> Option<Object> {
    // Ordering: Acquire, pairs with the store in `redirect`.
    let stand_in = TABLE[slot].stand_in.load(Ordering::Acquire);
    if stand_in.is_null() {
        return None;
    }
    // SAFETY: the caller's contract. The stand-in is a live object of the main interpreter, and is called in that one only.
    unsafe {
        if ffi::PyInterpreterState_Get() != ffi::PyInterpreterState_Main() {
            return None;
        }
        let all = count + if names.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(names) as usize };
        if all > MOST {
            return None;
        }
        let mut passed = [null_mut(); MOST + 1];
        passed[0] = if this.is_null() { ffi::Py_None() } else { this };
        for index in 0..all {
            passed[index + 1] = *arguments.add(index);
        }
        let result = ffi::PyObject_Vectorcall(stand_in, passed.as_ptr(), count + 1, names);
        if result != ffi::Py_NotImplemented() {
            return Some(result);
        }
        ffi::Py_DECREF(result);
        None
    }
}

fn original(slot: usize) -> *mut c_void {
    // Ordering: Acquire, pairs with the store in `redirect`. It is set before the function can be called.
    TABLE[slot].original.load(Ordering::Acquire)
}

unsafe extern "C" fn no_arguments<const SLOT: usize>(this: Object, unused: Object) -> Object {
    // SAFETY: the interpreter's call of a function without arguments, which is passed on.
    unsafe {
        answer(SLOT, this, null_mut(), 0, null_mut())
            .unwrap_or_else(|| std::mem::transmute::<*mut c_void, Plain>(original(SLOT))(this, unused))
    }
}

unsafe extern "C" fn one<const SLOT: usize>(this: Object, argument: Object) -> Object {
    // SAFETY: the interpreter's call of a function with one argument, which is passed on.
    unsafe {
        answer(SLOT, this, &raw const argument, 1, null_mut())
            .unwrap_or_else(|| std::mem::transmute::<*mut c_void, Plain>(original(SLOT))(this, argument))
    }
}

unsafe extern "C" fn tuple<const SLOT: usize>(this: Object, arguments: Object) -> Object {
    // SAFETY: the interpreter's call of a function that gets a tuple, which is passed on. The tuple keeps its items alive.
    unsafe {
        let count = ffi::PyTuple_GET_SIZE(arguments) as usize;
        let mut items = [null_mut(); MOST];
        for (index, item) in items.iter_mut().enumerate().take(count) {
            *item = ffi::PyTuple_GET_ITEM(arguments, index as ffi::Py_ssize_t);
        }
        let answered =
            if count > MOST { None } else { answer(SLOT, this, items.as_ptr(), count, null_mut()) };
        answered.unwrap_or_else(|| std::mem::transmute::<*mut c_void, Plain>(original(SLOT))(this, arguments))
    }
}

unsafe extern "C" fn fast<const SLOT: usize>(
    this: Object,
    arguments: Arguments,
    count: ffi::Py_ssize_t,
) -> Object {
    // SAFETY: the interpreter's call of a function that gets an array, which is passed on.
    unsafe {
        answer(SLOT, this, arguments, count as usize, null_mut()).unwrap_or_else(|| {
            std::mem::transmute::<*mut c_void, Fast>(original(SLOT))(this, arguments, count)
        })
    }
}

unsafe extern "C" fn fast_keywords<const SLOT: usize>(
    this: Object,
    arguments: Arguments,
    count: ffi::Py_ssize_t,
    names: Object,
) -> Object {
    // SAFETY: the interpreter's call of a function that gets an array and names, which is passed on.
    unsafe {
        answer(SLOT, this, arguments, count as usize, names).unwrap_or_else(|| {
            std::mem::transmute::<*mut c_void, FastKeywords>(original(SLOT))(this, arguments, count, names)
        })
    }
}

/// The file from which the code or the data at an address was loaded; null if that is not known.
fn file_of(address: *const c_void) -> *const c_char {
    // SAFETY: the function may be called with any address, and fills the structure if it returns another value than 0.
    unsafe {
        let mut found = std::mem::zeroed::<libc::Dl_info>();
        if libc::dladdr(address, &raw mut found) == 0 {
            std::ptr::null()
        } else {
            found.dli_fbase as *const c_char
        }
    }
}

/// Lets `stand_in` answer for a built-in function, or nothing. Returns the earlier stand-in.
///
/// Raises ValueError if it is no built-in function, and RuntimeError if another tool has exchanged its C function.
#[pyfunction]
pub(crate) fn _redirect(
    function: &Bound<'_, PyAny>,
    stand_in: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Py<PyAny>>> {
    let unknown = || exception::<pyo3::exceptions::PyValueError>("a built-in function was expected");
    let replaced = || exception::<pyo3::exceptions::PyRuntimeError>("another tool has replaced the function");
    // SAFETY: the object is a built-in function, so it has a definition.
    let definition = unsafe {
        if ffi::PyCFunction_Check(function.as_ptr()) == 0 {
            return Err(unknown());
        }
        (*function.as_ptr().cast::<ffi::PyCFunctionObject>()).m_ml
    };
    // SAFETY: definitions of built-in functions are never freed, and not written but here and by similar tools.
    let (convention, place) = unsafe {
        let convention = Convention::of((*definition).ml_flags).ok_or_else(unknown)?;
        (convention, AtomicPtr::from_ptr((&raw mut (*definition).ml_meth).cast::<*mut c_void>()))
    };
    let known = TABLE.iter().position(|slot| slot.definition.load(Ordering::Acquire) == definition);
    let Some(number) = known.or_else(|| stand_in.and_then(|_| claim(definition))) else {
        // It was never redirected, or there is no slot left, of which the package needs fewer.
        return if stand_in.is_none() { Ok(None) } else { Err(unknown()) };
    };
    let (slot, entry) = (&TABLE[number], ENTRIES[number].get(convention));
    let present = place.load(Ordering::Acquire);
    if stand_in.is_some() && present != entry {
        let (code, data) = (file_of(present), file_of(definition.cast_const().cast()));
        if code != data {
            return Err(replaced());
        }
        slot.original.store(present, Ordering::Release);
    }
    let new = stand_in.map_or(null_mut(), |stand_in| stand_in.clone().into_ptr());
    // Ordering: Release, pairs with the load in `answer`.
    let earlier = slot.stand_in.swap(new, Ordering::AcqRel);
    // Ordering: Release: whoever calls the entry finds the slot filled. The interpreter reads the pointer.
    if stand_in.is_some() {
        place.store(entry, Ordering::Release);
    } else if present == entry {
        place.store(original(number), Ordering::Release);
    }
    // SAFETY: a live object, because the slot's reference is kept.
    Ok(unsafe { Bound::from_borrowed_ptr_or_opt(function.py(), earlier) }.map(Bound::unbind))
}

/// A slot for a definition; `None` if there is none left.
fn claim(definition: *mut ffi::PyMethodDef) -> Option<usize> {
    TABLE.iter().position(|slot| {
        // Ordering: AcqRel, pairs with itself: one thread gets the slot.
        slot.definition.compare_exchange(null_mut(), definition, Ordering::AcqRel, Ordering::Acquire).is_ok()
    })
}
