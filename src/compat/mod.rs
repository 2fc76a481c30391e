//! Detects patches of asyncio.
//!
//! Native code replaces methods of asyncio. Debuggers, tracers, test clocks, mocks and libraries such as nest_asyncio
//! patch the same methods, and expect every loop to call the patched ones. This is what a program may replace:
//!
//! | what | counts | noticed by | what it costs |
//! |---|---|---|---|
//! | a method of asyncio's loop classes | from the next run on | `wakeloop._loop.inheritance`, which puts the patch, or asyncio's method that calls the patched one, in the place of ours | nothing per call; between two runs a comparison of the version tag |
//! | `time` of the loop, `time.monotonic`, `call_at` | at once | [`clock`] | two comparisons where the time is needed |
//! | `Handle._run` | from the next run on | [`patches`] | nothing per callback |
//! | the other methods of handles, and their classes | from the next run on | `_asyncio.compat.makes_handles`, for `_loop.inheritance` | nothing |
//! | the classes of futures and tasks | at once | [`patches`] | a comparison per future or task |
//! | methods of the transports that exist | at once | [`transports`] | a comparison of the version tag |
//! | methods of `socket.socket` | at once | [`sockets`] and the questions of `wakeloop._asyncio.compat` | a comparison of the version tag |
//! | what makes connections, servers and lookups | at once | the questions of `wakeloop._asyncio.compat` | the same, and a code object per function |
//!
//! A class is compared by [`Class`], a function by [`Function`]. Python asks through `_core.unpatched`, which creates a
//! callable check of classes and modules. If something is patched, asyncio's code or the patch does the work. [`version`]
//! has the differences between CPython's versions. [`descriptor`] reads the descriptors of Python's sockets and files.
//!
//! Invariants:
//! - Only a function that asyncio, another package of the standard library or wakeloop has defined counts as an
//!   original. A patch that was made before wakeloop was imported counts as a patch too.
//! - A patch is seen as soon as it is made, and no longer once it is undone, where the table says "at once". Where it says
//!   "from the next run on", the patch may be seen earlier.
//! - A check runs no Python code, unless the function's documentation says so.
//!
//! Everything here needs a thread that is attached. What is cached is atomic, or, with a GIL, a cell that it guards.

mod class;
pub(crate) mod clock;
pub(crate) mod descriptor;
mod function;
mod inline_cache;
mod inline_values;
mod module_name;
mod original;
pub(crate) mod patches;
pub(crate) mod python;
pub(crate) mod sockets;
pub(crate) mod task_fields;
pub(crate) mod transports;
pub(crate) mod version;

pub(crate) use class::Class;
pub(crate) use function::Function;
pub(crate) use inline_cache::InlineCache;
pub(crate) use original::MAX_SIZE;
