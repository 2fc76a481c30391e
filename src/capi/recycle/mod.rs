//! Reuse of objects and memory that cost more to make than to use.
//!
//! **The rule: no program can tell that an object or its memory was used before.** Each file below reuses one kind of
//! thing, and keeps the rule in one of two ways.
//!
//! Dead memory ([`freelist`], [`futures`]). The object is gone when its memory is kept: its last reference was
//! dropped, its finalizer has run, no weak reference is left, it refers to nothing, and the collector no longer
//! tracks it. A new object in this memory goes through `_Py_NewReference`, which tells tracemalloc, and it is the
//! youngest object that the collector tracks. CPython's own freelists do the same.
//!
//! Live objects ([`bytes_cache`], [`stop_iteration`], [`context`]). An object is filled again only if
//! - ours is the only reference to it, as its reference count says, and
//! - nothing is attached to it that would outlive the reuse: no dict, weak reference, traceback, context or hash.
//!
//! So an object that a program still refers to, in any thread, is never changed. The classes of these objects are
//! immutable. The objects have no finalizer and cannot be part of a dead cycle, so the collector's order is the same.
//!
//! What a forked child inherits is its own copy. All state here belongs to the process and not to a loop, unless its
//! file says otherwise: objects die in any thread and after their loop. The GIL guards it. On a free-threaded build
//! nothing is reused ([`REUSES`](super::section::REUSES)): a reference count does not tell there whether another thread is about to look at an
//! object, and the interpreter's allocator has a heap for each thread.
//!
//! Buffers that are not Python objects are reused in `kernel::core::scratch`. Their content is copied before
//! Python code runs, or one call at a time uses them.

pub(crate) mod bytes_cache;
pub(crate) mod context;
pub(crate) mod freelist;
pub(crate) mod futures;
pub(crate) mod stop_iteration;
