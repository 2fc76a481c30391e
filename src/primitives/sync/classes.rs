//! The Python classes: `Queue`, its blocking side `SyncQueue`, and `Event`.

use pyo3::prelude::*;

use super::blocking::{block, deadline, queue_deadline};
use super::call;
use super::line::{Seat, Tried};
use super::objects::{EventObject, QueueObject};
use super::queue::{Side, raise_class};
use super::wait::Wanted;
use crate::capi::arguments::parse_init;
use crate::capi::class::{ClassSpec, field};
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::inspect::boolean;
use crate::capi::methods::{Attribute, Method, TypeSlot};
use crate::capi::native::{self, Dealloc, WeakList, native_class};
use crate::capi::{Arguments, Borrowed, Fallible, Raised, Ref, Slot, This};

// -- Queue -------------------------------------------------------------------------------------------------------

/// `__init__(maxsize=0)`.
fn init(
    this: This<'_, QueueObject>,
    arguments: Borrowed<'_>,
    keywords: Option<Borrowed<'_>>,
) -> Result<(), Raised> {
    // SAFETY: one object, one name.
    let [maxsize] = unsafe { parse_init(arguments, keywords, c"|O:Queue", [c"maxsize"])? };
    if let Some(maxsize) = maxsize {
        this.queue.set_maxsize(integer(maxsize.borrow())?);
    }
    Ok(())
}

fn integer(value: Borrowed<'_>) -> Result<i64, Raised> {
    match value.saturating_int() {
        Some(number) => Ok(number),
        None => Ok(value.to_index()? as i64),
    }
}

/// Puts an item if there is room.
#[inline(always)]
fn try_put(this: This<'_, QueueObject>, item: Borrowed<'_>) -> Result<bool, Raised> {
    let item = Slot::new(Some(item.to_owned()));
    let tried = this.queue.put(this.py(), &item, &mut Seat::default())?;
    Ok(matches!(tried, Tried::Done(_)))
}

/// Takes an item if there is one.
#[inline(always)]
fn try_get(this: This<'_, QueueObject>) -> Result<Option<Ref>, Raised> {
    match this.queue.get(this.py(), &mut Seat::default())? {
        Tried::Done(item) => Ok(Some(item)),
        Tried::Waits(_) | Tried::Refused => Ok(None),
    }
}

fn put(this: This<'_, QueueObject>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let item = arguments.one("put", "item")?;
    call::create(this.object(), "Queue.put", Side::Put, Some(item.to_owned()))
}

fn get(this: This<'_, QueueObject>) -> Result<Ref, Raised> {
    call::create(this.object(), "Queue.get", Side::Get, None)
}

fn join(this: This<'_, QueueObject>) -> Result<Ref, Raised> {
    call::create(this.object(), "Queue.join", Side::Join, None)
}

fn put_nowait(this: This<'_, QueueObject>, arguments: Arguments<'_>) -> Result<(), Raised> {
    if try_put(this, arguments.one("put_nowait", "item")?)? {
        Ok(())
    } else {
        Err(named(this, "asyncio", "QueueFull"))
    }
}

fn get_nowait(this: This<'_, QueueObject>) -> Result<Ref, Raised> {
    try_get(this)?.ok_or_else(|| named(this, "asyncio", "QueueEmpty"))
}

/// Raises an exception of the standard library.
#[cold]
fn named<T>(this: This<'_, T>, module: &str, class: &str) -> Raised {
    raise_class(this.py().import(Fallible(module)).and_then(|module| module.getattr(Fallible(class))))
}

fn task_done(this: This<'_, QueueObject>) -> Result<(), Raised> {
    this.queue.task_done(this.py())
}

fn shutdown(this: This<'_, QueueObject>, arguments: Arguments<'_>) -> Result<(), Raised> {
    let ([], [immediate]) = arguments.bind("shutdown", [], ["immediate"])?;
    let immediate = immediate.map_or(Ok(false), |immediate| immediate.is_true())?;
    this.queue.shut_down(this.py(), immediate)
}

fn is_empty(this: This<'_, QueueObject>) -> bool {
    this.queue.len() == 0
}

fn sync_side(this: This<'_, QueueObject>) -> Result<Ref, Raised> {
    let made = native::create(SyncQueueObject {
        queue: Slot::new(Some(this.object().to_owned())),
        weaklist: WeakList::new(),
    })?;
    if let Some(side) = made.downcast::<SyncQueueObject>() {
        side.track();
    }
    Ok(made)
}

fn repr_queue(this: This<'_, QueueObject>) -> String {
    let (size, unfinished, is_shutdown) = this.queue.summary();
    let maxsize = this.queue.maxsize();
    let shutdown = if is_shutdown { " shutdown" } else { "" };
    format!("<wakeloop.Queue maxsize={maxsize} qsize={size} tasks={unfinished}{shutdown}>")
}

const TASK_DONE: &std::ffi::CStr = c"Say that an item that was taken is done with: join() waits for that. Raises ValueError if called more often than there were items.";
const SHUTDOWN: &std::ffi::CStr = c"shutdown(immediate=False)\n\nEnd the queue: put() raises QueueShutDown from now on, and get() once the queue is empty. If immediate is true, the items are dropped, and count as done.";
const QSIZE: &std::ffi::CStr = c"The number of items.";
const EMPTY: &std::ffi::CStr = c"Whether there is no item.";
const FULL: &std::ffi::CStr = c"Whether there are maxsize items.";

fn make_queue(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let class = ClassSpec::<QueueObject>::new(c"wakeloop.Queue")
        .with_default_fields()
        .doc(c"Queue(maxsize=0)\n--\n\nA first-in, first-out queue between tasks of any event loops, and between them and threads.\n\nThe methods are those of asyncio.Queue, with the same errors. Any thread may call them, and tasks of any asyncio\nloop may await them. Threads that may block use sync_q, which has the methods of queue.Queue. A maxsize of zero\nor less means any number of items.")
        .weaklist(field!(QueueObject, weaklist))
        .methods(&[
            Method::fast(c"put", put, c"put(item)\n\nPut an item; wait while the queue is full. A put that is cancelled has put nothing. Raises QueueShutDown. Awaitable.").coroutine(),
            Method::no_args(c"get", get, c"Take the oldest item; wait while there is none. A get that is cancelled has taken nothing. Raises QueueShutDown. Awaitable.").coroutine(),
            Method::fast(c"put_nowait", put_nowait, c"put_nowait(item)\n\nPut an item. Raises asyncio.QueueFull if the queue is full, and QueueShutDown."),
            Method::no_args(c"get_nowait", get_nowait, c"Take the oldest item. Raises asyncio.QueueEmpty if there is none, and QueueShutDown."),
            Method::no_args(c"join", join, c"Wait until task_done() was called for every item that was put. Awaitable.").coroutine(),
            Method::no_args(c"task_done", task_done, TASK_DONE),
            Method::fast(c"shutdown", shutdown, SHUTDOWN),
            Method::no_args(c"qsize", |this: This<'_, QueueObject>| this.queue.len(), QSIZE),
            Method::no_args(c"empty", is_empty, EMPTY),
            Method::no_args(c"full", |this: This<'_, QueueObject>| this.queue.is_full(), FULL),
        ])
        .attributes(&[
            Attribute::read_only(c"maxsize", |this: This<'_, QueueObject>| this.queue.maxsize())
                .doc(c"The largest number of items; zero or less if there is none."),
            Attribute::read_only(c"sync_q", sync_side)
                .doc(c"The side for threads that may block, with the methods of queue.Queue."),
        ])
        .slots(&TypeSlot::collected())
        .slots(&[TypeSlot::dealloc(), TypeSlot::init(init), TypeSlot::repr(repr_queue)])
        .build(py)?;
    add_generics(&class)?;
    Ok(class)
}

/// For annotations such as `Queue[T]`.
fn add_generics(class: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = class.py();
    let generic = py.import(Fallible("types"))?.getattr(Fallible("GenericAlias"))?;
    let method = py.import(Fallible("builtins"))?.getattr(Fallible("classmethod"))?.call1((generic,))?;
    class.setattr(Fallible("__class_getitem__"), method)
}

// -- SyncQueue ---------------------------------------------------------------------------------------------------

/// The side of a queue for threads that may block.
#[derive(Debug)]
struct SyncQueueObject {
    queue: Slot,
    weaklist: WeakList,
}

// `make_sync_queue` builds the class, of which `sync_side` makes every instance.
native_class!(unsafe SyncQueueObject);

impl Traverse for SyncQueueObject {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slot(&self.queue);
    }

    fn clear(&self) {
        // The queue clears itself, and other threads may use this object for as long as they refer to it.
    }
}

impl Dealloc for SyncQueueObject {
    fn weaklist(&self) -> Option<&WeakList> {
        Some(&self.weaklist)
    }
}

/// Calls `body` with the queue.
#[inline(always)]
fn of_queue<R>(
    this: This<'_, SyncQueueObject>,
    body: impl FnOnce(This<'_, QueueObject>) -> Result<R, Raised>,
) -> Result<R, Raised> {
    // The slot is never emptied.
    let object = this.queue.get().ok_or(Raised)?;
    body(object.downcast_sync::<QueueObject>().ok_or(Raised)?)
}

/// `block` and `timeout`: whether to wait, and until when.
fn waits(
    block: Option<Borrowed<'_>>,
    timeout: Option<Borrowed<'_>>,
) -> Result<Option<Option<std::time::Instant>>, Raised> {
    if block.map_or(Ok(true), |block| block.is_true())? {
        queue_deadline(timeout).map(Some)
    } else {
        Ok(None)
    }
}

fn sync_put(this: This<'_, SyncQueueObject>, arguments: Arguments<'_>) -> Result<(), Raised> {
    let ([item], [blocks, timeout]) = arguments.bind("put", ["item"], ["block", "timeout"])?;
    let done = of_queue(this, |queue| match waits(blocks, timeout)? {
        Some(deadline) => {
            let item = Slot::new(Some(item.to_owned()));
            Ok(block(queue.py(), Wanted::Queue(&queue.fields().queue, Side::Put), &item, deadline)?.is_some())
        }
        None => try_put(queue, item),
    })?;
    if done { Ok(()) } else { Err(named(this, "queue", "Full")) }
}

fn sync_get(this: This<'_, SyncQueueObject>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [blocks, timeout]) = arguments.bind("get", [], ["block", "timeout"])?;
    let item = of_queue(this, |queue| match waits(blocks, timeout)? {
        Some(deadline) => {
            block(queue.py(), Wanted::Queue(&queue.fields().queue, Side::Get), &Slot::empty(), deadline)
        }
        None => try_get(queue),
    })?;
    item.ok_or_else(|| named(this, "queue", "Empty"))
}

fn sync_put_nowait(this: This<'_, SyncQueueObject>, arguments: Arguments<'_>) -> Result<(), Raised> {
    let item = arguments.one("put_nowait", "item")?;
    if of_queue(this, |queue| try_put(queue, item))? { Ok(()) } else { Err(named(this, "queue", "Full")) }
}

fn sync_get_nowait(this: This<'_, SyncQueueObject>) -> Result<Ref, Raised> {
    of_queue(this, try_get)?.ok_or_else(|| named(this, "queue", "Empty"))
}

fn sync_join(this: This<'_, SyncQueueObject>) -> Result<(), Raised> {
    let joined = of_queue(this, |queue| {
        block(queue.py(), Wanted::Queue(&queue.fields().queue, Side::Join), &Slot::empty(), None)
    });
    joined.map(drop)
}

fn repr_sync(this: This<'_, SyncQueueObject>) -> Result<String, Raised> {
    of_queue(this, |queue| Ok(format!("<wakeloop.SyncQueue of {}>", repr_queue(queue))))
}

fn make_sync_queue(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let class = ClassSpec::<SyncQueueObject>::new(c"wakeloop.SyncQueue")
        .doc(c"The side of a Queue for threads that may block: the methods of queue.Queue, with the same errors.\n\nQueue.sync_q returns one. A thread that waits does not hold the GIL, and a signal ends its wait, as that of a\nqueue.Queue. Used in the thread of an event loop, a wait blocks the loop.")
        .weaklist(field!(SyncQueueObject, weaklist))
        .methods(&[
            Method::fast(c"put", sync_put, c"put(item, block=True, timeout=None)\n\nPut an item; wait while the queue is full, up to timeout seconds if it is not None. Raises queue.Full after the timeout, or at once if block is false, and QueueShutDown."),
            Method::fast(c"get", sync_get, c"get(block=True, timeout=None)\n\nTake the oldest item; wait while there is none, up to timeout seconds if it is not None. Raises queue.Empty after the timeout, or at once if block is false, and QueueShutDown."),
            Method::fast(c"put_nowait", sync_put_nowait, c"put_nowait(item)\n\nPut an item. Raises queue.Full if the queue is full, and QueueShutDown."),
            Method::no_args(c"get_nowait", sync_get_nowait, c"Take the oldest item. Raises queue.Empty if there is none, and QueueShutDown."),
            Method::no_args(c"join", sync_join, c"Wait until task_done() was called for every item that was put."),
            Method::no_args(c"task_done", |this: This<'_, SyncQueueObject>| of_queue(this, task_done), TASK_DONE),
            Method::fast(c"shutdown", |this: This<'_, SyncQueueObject>, arguments: Arguments<'_>| of_queue(this, |queue| shutdown(queue, arguments)), SHUTDOWN),
            Method::no_args(c"qsize", |this: This<'_, SyncQueueObject>| of_queue(this, |queue| Ok(queue.queue.len())), QSIZE),
            Method::no_args(c"empty", |this: This<'_, SyncQueueObject>| of_queue(this, |queue| Ok(is_empty(queue))), EMPTY),
            Method::no_args(c"full", |this: This<'_, SyncQueueObject>| of_queue(this, |queue| Ok(queue.queue.is_full())), FULL),
        ])
        .attributes(&[Attribute::read_only(c"maxsize", |this: This<'_, SyncQueueObject>| {
            of_queue(this, |queue| Ok(queue.queue.maxsize()))
        })
        .doc(c"The largest number of items; zero or less if there is none.")])
        .slots(&TypeSlot::collected())
        .slots(&[TypeSlot::dealloc(), TypeSlot::repr(repr_sync)])
        .build(py)?;
    add_generics(&class)?;
    Ok(class)
}

// -- Event -------------------------------------------------------------------------------------------------------

fn init_event(
    _this: This<'_, EventObject>,
    arguments: Borrowed<'_>,
    keywords: Option<Borrowed<'_>>,
) -> Result<(), Raised> {
    // SAFETY: no objects, no names.
    unsafe { parse_init(arguments, keywords, c":Event", []) }.map(|[]| ())
}

fn wait(this: This<'_, EventObject>) -> Result<Ref, Raised> {
    call::create(this.object(), "Event.wait", Side::Get, None)
}

fn sync_wait(this: This<'_, EventObject>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([], [timeout]) = arguments.bind("sync_wait", [], ["timeout"])?;
    let waited = block(this.py(), Wanted::Event(&this.event), &Slot::empty(), deadline(timeout)?)?;
    Ok(waited.unwrap_or_else(|| boolean(false)))
}

fn repr_event(this: This<'_, EventObject>) -> String {
    let state = if this.event.is_set() { "set" } else { "unset" };
    match this.event.waiters() {
        0 => format!("<wakeloop.Event {state}>"),
        waiters => format!("<wakeloop.Event {state} waiters:{waiters}>"),
    }
}

fn make_event(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    ClassSpec::<EventObject>::new(c"wakeloop.Event")
        .with_default_fields()
        .doc(c"Event()\n--\n\nA flag that tasks of any event loops, and threads, set and wait for.\n\nThe methods are those of asyncio.Event. Any thread may call them, and tasks of any asyncio loop may await wait().\nThreads that may block use sync_wait().")
        .weaklist(field!(EventObject, weaklist))
        .methods(&[
            Method::no_args(c"set", |this: This<'_, EventObject>| this.event.set(this.py()), c"Set the flag, and wake all who wait for it."),
            Method::no_args(c"clear", |this: This<'_, EventObject>| this.event.clear(), c"Reset the flag: wait() waits again."),
            Method::no_args(c"is_set", |this: This<'_, EventObject>| this.event.is_set(), c"Whether the flag is set."),
            Method::no_args(c"wait", wait, c"Wait until the flag is set; gives True. Awaitable.").coroutine(),
            Method::fast(c"sync_wait", sync_wait, c"sync_wait(timeout=None)\n\nBlock this thread until the flag is set, up to timeout seconds if it is not None. Returns whether it was set in time. In the thread of an event loop this blocks the loop."),
        ])
        .slots(&TypeSlot::collected())
        .slots(&[TypeSlot::dealloc(), TypeSlot::init(init_event), TypeSlot::repr(repr_event)])
        .build(py)
}

/// Adds the classes to the module.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Queue", make_queue(py)?)?;
    module.add("SyncQueue", make_sync_queue(py)?)?;
    module.add("Event", make_event(py)?)
}
