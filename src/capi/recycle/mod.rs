//! Everything that is used again, because to make it costs more than what it is for.
//!
//! **The rule: no program can tell that a thing was used before.** Each file below reuses one kind of thing, and keeps
//! the rule in one of two ways.
//!
//! Dead memory ([`freelist`], [`futures`]). The object is gone when its memory is kept: its last reference was dropped, its
//! finalizer has run, no weak reference is left, it refers to nothing, and the collector has forgotten it. A new object
//! in this memory goes through `PyObject_Init`, which tells tracemalloc, and it is the youngest that the collector knows.
//! CPython's own freelists do the same.
//!
//! Live objects ([`bytes_cache`], [`stop_iteration`], [`context`]). The object is filled anew only if
//! - ours is the only reference to it, as its reference count says, and
//! - nothing is attached to it that would outlive the reuse: no dict, weak reference, traceback, context or hash.
//!
//! So an object that a program still refers to, in any thread, is never changed. The classes of these objects are immutable.
//! The objects have no finalizer and cannot be part of a dead cycle, so the collector's order is the same.
//!
//! What a forked child inherits is its own copy. All state here belongs to the process and not to a loop, unless its file
//! says otherwise: objects die in any thread and after their loop. The GIL guards it; without a GIL it would be per thread,
//! as CPython's freelists are.
//!
//! Other buffers are used again without Python objects around them: see `event_loop::core::scratch`. Their content is
//! copied before Python code runs, or they are held by one call at a time.

pub(crate) mod bytes_cache;
pub(crate) mod context;
pub(crate) mod freelist;
pub(crate) mod futures;
pub(crate) mod stop_iteration;
