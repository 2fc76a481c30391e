//! Reads the name and the coroutine of a task of `_asyncio`, and the task of the callback that is its next step.
//!
//! The public methods cost hundreds of instructions, and `get_name` is a method that a subclass may override. The layout
//! of these objects is private to CPython. So [`init`] looks for the fields in sample objects, of which it knows what
//! they refer to. A field that was not found, or that may be one of two, is not read.
//!
//! Without a GIL a task is looked at in its own critical section, in which `_asyncio` replaces what it refers to. The
//! other fields are read as CPython's own functions read them, without a lock; the task of a step never changes.

use pyo3::ffi;

use crate::capi::once::Once;
use crate::capi::shared::{Found, found};
use crate::capi::{Borrowed, Ref};

/// Where the fields are, in bytes.
#[derive(Debug)]
struct Layout {
    /// The class of the callback that steps a task. Never dropped.
    step_class: Ref,
    task_class: Ref,
    partial_class: Ref,
    step_task: usize,
    task_name: usize,
    task_coroutine: usize,
    coroutine_name: usize,
    partial_function: usize,
}

static LAYOUT: Once<Layout> = Once::new();

/// The objects in which [`init`] looks for the fields.
#[derive(Debug)]
pub(crate) struct Sample {
    /// The callback that a new task has passed to `call_soon`.
    pub(crate) step: Ref,
    pub(crate) task: Ref,
    /// The task's name, which no other object has.
    pub(crate) name: Ref,
    pub(crate) coroutine: Ref,
    /// The coroutine's `__qualname__`, which no other object has.
    pub(crate) qualname: Ref,
    /// A `functools.partial`, and its function.
    pub(crate) partial: Ref,
    pub(crate) function: Ref,
}

/// Looks for the fields. Without them, tasks have no names in recordings.
pub(crate) fn init(sample: Sample) -> bool {
    let Sample { step, task, name, coroutine, qualname, partial, function } = sample;
    if LAYOUT.get().is_some() {
        return true;
    }
    let find = || {
        Some(Layout {
            step_task: field(&step, &task)?,
            task_name: field(&task, &name)?,
            task_coroutine: field(&task, &coroutine)?,
            coroutine_name: field(&coroutine, &qualname)?,
            partial_function: field(&partial, &function)?,
            step_class: class_of(&step),
            task_class: class_of(&task),
            partial_class: class_of(&partial),
        })
    };
    let found = find();
    let all = found.is_some();
    found.into_iter().for_each(|layout| LAYOUT.set(layout));
    all
}

fn class_of(object: &Ref) -> Ref {
    // SAFETY: the class of a live object.
    unsafe { Ref::from_borrowed(object.kind().cast()) }
}

/// The offset of the only word of `object` that is a pointer to `content`.
fn field(object: &Ref, content: &Ref) -> Option<usize> {
    // SAFETY: an instance has at least `tp_basicsize` bytes.
    let words = unsafe { (*object.kind()).tp_basicsize } as usize / size_of::<usize>();
    let header = size_of::<ffi::PyObject>() / size_of::<usize>();
    // SAFETY: these words are inside of the object.
    let is_it = |word: &usize| unsafe { *word_of(object, word * size_of::<usize>()) } == content.as_ptr();
    let mut found = (header..words).filter(is_it);
    match (found.next(), found.next()) {
        (Some(word), None) => Some(word * size_of::<usize>()),
        _ => None,
    }
}

#[inline(always)]
fn word_of(object: &Ref, offset: usize) -> *const *mut ffi::PyObject {
    object.as_ptr().cast::<u8>().wrapping_add(offset).cast_const().cast()
}

/// The object in a field, borrowed: it is valid until other code runs.
///
/// # Safety
/// [`init`] has found the field in an instance of the same class.
#[inline(always)]
unsafe fn read(object: &Ref, offset: usize) -> Option<Borrowed<'_>> {
    // SAFETY: the caller's promise. A field refers to an object or is null.
    unsafe { Borrowed::from_nullable(*word_of(object, offset)) }
}

/// The task whose next step the callback is.
#[inline(always)]
pub(crate) fn task_of_step(callback: &Ref) -> Option<Borrowed<'_>> {
    let layout = LAYOUT.get()?;
    // SAFETY: an instance of exactly the class in which the field was found.
    if callback.is_exactly(&layout.step_class) { unsafe { read(callback, layout.step_task) } } else { None }
}

/// Is it a task of `_asyncio`, or of a subclass? Calls no `__instancecheck__`.
pub(crate) fn is_task(object: &Ref) -> bool {
    // SAFETY: the classes of live objects.
    LAYOUT.get().is_some_and(|layout| unsafe {
        ffi::PyType_IsSubtype(object.kind(), layout.task_class.as_ptr().cast()) != 0
    })
}

/// The name, which is a string or a number (of a name "Task-7"), and the coroutine of a task.
///
/// # Safety
/// [`is_task`] is true of the object, or it comes from [`task_of_step`].
#[inline(always)]
pub(crate) unsafe fn name_and_coroutine(task: &Ref) -> Option<(Found<'_>, Found<'_>)> {
    let layout = LAYOUT.get()?;
    task.hold(|| {
        // SAFETY: a subclass has the fields at the same places. `_asyncio` makes steps only for its own tasks.
        unsafe { Some((found(read(task, layout.task_name)?), found(read(task, layout.task_coroutine)?))) }
    })
}

/// The `__qualname__` of a coroutine of an `async def` function.
#[inline(always)]
pub(crate) fn coroutine_name(coroutine: &Ref) -> Option<Found<'_>> {
    let layout = LAYOUT.get()?;
    // SAFETY: an instance of exactly the class in which the field was found.
    unsafe {
        if coroutine.kind() == &raw mut ffi::PyCoro_Type {
            read(coroutine, layout.coroutine_name).map(found)
        } else {
            None
        }
    }
}

/// The function of a `functools.partial` of exactly that class.
pub(crate) fn function_of_partial(object: &Ref) -> Option<Found<'_>> {
    let layout = LAYOUT.get()?;
    if !object.is_exactly(&layout.partial_class) {
        return None;
    }
    // SAFETY: an instance of exactly the class in which the field was found.
    unsafe { read(object, layout.partial_function).map(found) }
}
