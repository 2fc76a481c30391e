//! Detects patches of asyncio.
//!
//! Native code replaces methods of asyncio. Debuggers, tracers, test clocks, mocks and libraries such as nest_asyncio
//! patch the same methods, and expect every loop to call the patched ones. So the rest of the crate asks this module
//! whether a class or a function is unpatched. If it is not, asyncio's code or the patch does the work.
//!
//! | question | answered by | what it costs |
//! |---|---|---|
//! | is a class, or an instance of it, unpatched? | [`Class`] | a comparison of the class's version tag, and of a code object per function |
//! | is a function unpatched? | [`Function`] | a lookup; for a module's function a comparison while the module is unchanged |
//! | do tracers need to see callbacks and tasks? | [`patches`] | asked when a loop is created or begins to run |
//! | has a test replaced the loop's clock? | [`clock`] | asked when the class or the `time` module has changed |
//! | has a program patched methods of asyncio's transports? | [`transports`] | as for a class |
//! | has a program patched methods of `socket.socket`? | [`sockets`] | as for a class |
//!
//! Python asks through `_core.unpatched`, which creates a callable check of classes and modules. `wakeloop._compat` has
//! all these checks. [`version`] has the differences between CPython's versions. [`descriptor`] reads the descriptors
//! of Python's sockets and files.
//!
//! Invariants:
//! - Only a function that asyncio, another package of the standard library or wakeloop has defined counts as an
//!   original. A patch that was made before wakeloop was imported counts as a patch too.
//! - A patch is seen as soon as it is made, and no longer once it is undone. Only [`patches`] is asked less often.
//! - A check runs no Python code, unless the function's documentation says so.
//!
//! Everything here needs a thread that is attached. What is cached is atomic, or, with a GIL, a cell that it guards.

mod class;
pub(crate) mod clock;
pub(crate) mod descriptor;
mod function;
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
